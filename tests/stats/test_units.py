"""Counts of units: what one of them changes, and how those with too many cells are bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtorch.privacy.counts import CountTerms, NoisedCounts
from fedtorch.privacy.record.silo import Silo
from fedtorch.stats.counting import CountedRow, SiloCounts, Unit, bin_of, words_of
from fedtorch.stats.questions import CountPlan, Question, bins
from fedtorch.stats.settings import Words

WORDS = Words(longest=4, width=8, per_unit=2)
QUESTIONS = (
    Question("rows", "rows", cells=("train", "dev", "test")),
    Question("units", "units", cells=("units",)),
    Question("empty", "empty", cells=("empty",)),
    Question("twice", "twice", cells=("from the second time on",)),
    Question("labels", "labels", cells=("a", "b", "c"), most=2),
    Question("characters", "characters", edges=bins(64)),
    Question("words", "words", found=WORDS, most=2),
)
PLAN = CountPlan(("one", "two"), QUESTIONS, by_silo=True)
TERMS = CountTerms(1.0, None, 1e-5, None, "person", "normal", tuple(len(PLAN.in_round(r)) for r in range(PLAN.rounds)))
SILO = NoisedCounts(Silo(bytes(32), None), TERMS, 0, [], [])


def row(text: str, label: str = "a", split: str = "train") -> CountedRow:
    return CountedRow(split, text.encode(), (text,), (label,), None)


def counted(units: Sequence[Unit], choose: Any = SILO.choose, round: int = 0, silo: int = 0) -> np.ndarray[Any, Any]:
    out = np.zeros(PLAN.size)
    SiloCounts(PLAN, WORDS, units, choose).fill(out, silo, round, {"words": [b""] if round == 0 else [b"a", b"b"]})
    return out


def table(out: np.ndarray[Any, Any], name: str, silo: int = 0) -> list[float]:
    place = next(place for place in PLAN.places if place.question.name == name)
    return out[place.block(silo)].tolist()


def test_a_person_with_eight_rows_of_one_label_moves_a_cell_by_one() -> None:
    one = Unit(tuple(row(f"text {number}") for number in range(8)))
    out = counted([one])
    assert table(out, "labels") == [1.0, 0.0, 0.0]
    assert table(out, "rows") == [1.0, 0.0, 0.0] and table(out, "units") == [1.0]
    assert sum(table(out, "characters")) == 1.0


def test_a_unit_in_too_many_cells_gives_as_many_as_it_may_and_always_the_same() -> None:
    person = Unit((row("x", "a"), row("y", "b"), row("z", "c")))
    found = [table(counted([person]), "labels") for _ in range(3)]
    assert found[0] == found[1] == found[2] and sum(found[0]) == 2.0
    assert table(counted([person], None), "labels") == [1.0, 1.0, 1.0]  # nothing bounds it without a promise
    others = [Unit((row(f"{n}", "a"), row(f"{n}!", "b"), row(f"{n}?", "c"))) for n in range(60)]
    assert all(20 < number < 60 for number in table(counted(others), "labels"))  # not always the same two


def test_words_of_a_unit_are_drawn_once_for_all_rounds() -> None:
    unit = Unit((row("ab b ac d bd"),))
    first, second = counted([unit]), counted([unit], round=1)
    begun = table(first, "words")
    chosen = SILO.choose(unit.name + b"words", sorted(words_of(["ab b ac d bd"], WORDS)), 2)
    expected = {word[0] for word in chosen}
    assert set(np.flatnonzero(begun).tolist()) == expected
    place = next(place for place in PLAN.in_round(1) if place.question.name == "words")
    assert second[place.start : place.stop].sum() == sum(word[:1] in (b"a", b"b") for word in chosen)


UNITS = st.lists(
    st.lists(st.tuples(st.text("ab ", min_size=1, max_size=8), st.sampled_from("abc")), min_size=1, max_size=4),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(
    UNITS, st.lists(st.tuples(st.text("ab ", min_size=1, max_size=8), st.sampled_from("abc")), min_size=1, max_size=5)
)
def test_one_unit_more_changes_each_table_by_the_root_of_its_cells_at_most(
    units: list[list[tuple[str, str]]], more: list[tuple[str, str]]
) -> None:
    made = [Unit(tuple(row(text, label) for text, label in unit)) for unit in units]
    extra = Unit(tuple(row(text, label, "dev") for text, label in more))
    for round in (0, 1):
        with_it, without = counted([*made, extra], round=round), counted(made, round=round)
        for place in PLAN.in_round(round):
            change = with_it[place.block(0)] - without[place.block(0)]
            assert np.abs(change).max() <= 1.0
            assert (change**2).sum() <= place.question.most, place.question.name


def test_units_that_begin_alike_stand_twice() -> None:
    units = [Unit((row("x"),)), Unit((row("x"),)), Unit((row("y"), row("x")))]
    assert table(counted(units, None), "twice") == [1.0]
    assert table(counted(units[1:], None), "twice") == [0.0]


def test_a_silo_writes_into_its_own_block_alone() -> None:
    out = counted([Unit((row("x"),))], silo=1)
    assert table(out, "labels", 0) == [0.0, 0.0, 0.0] and table(out, "labels", 1) == [1.0, 0.0, 0.0]
    assert out[PLAN.present(0)].tolist() == [0.0, 1.0]


def test_every_number_is_in_one_bin() -> None:
    edges = bins(64, more=(10,))
    for number in range(200):
        at = bin_of(edges, number)
        assert edges[at] <= number < edges[at + 1]


def test_words_are_runs_of_letters_and_of_signs() -> None:
    assert words_of(["Fever, 39 °C!"], Words()) == [b"Fever", b",", b"39", "°".encode(), b"C", b"!"]
    assert words_of(["A b C"], Words(lower=True, n=2)) == [b"a b", b"b c"]


def test_a_unit_with_an_empty_row_counts_once() -> None:
    empty = CountedRow("train", b"", (" . ",), (), None, is_empty=True)
    assert table(counted([Unit((empty, empty)), Unit((row("x"),)), Unit((empty, row("y")))]), "empty") == [2.0]
