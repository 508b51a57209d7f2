"""Numbers that are not shown: small ones, what they leave over, and others from which they would follow."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtorch.stats.prefixes import Noise, threshold
from fedtorch.stats.questions import BRANCHES, END, CountPlan, Question
from fedtorch.stats.reading import read, with_wide_ends, without_small
from fedtorch.stats.rule import CountRule
from fedtorch.stats.said import who_sees
from fedtorch.stats.settings import Found

INF = float("inf")


def shown(rows: dict[str, list[int]], *, parts: bool, least: int = 5) -> tuple[Any, Any]:
    each = {name: np.array(row, dtype=float) for name, row in rows.items()}
    return without_small(np.sum(list(each.values()), axis=0), each if len(each) > 1 else {}, least, parts=parts)


def test_small_numbers_are_hidden_and_so_is_what_they_would_follow_from() -> None:
    pooled, _ = shown({"all": [3, 40, 60]}, parts=False)
    assert pooled == (None, 40.0, 60.0)
    pooled, _ = shown({"all": [3, 40, 60]}, parts=True)  # who knows that there are 103 would know the 3
    assert pooled == (None, None, 60.0)
    pooled, _ = shown({"all": [98, 2]}, parts=True)  # 98 of 100 tells of the 2
    assert pooled == (None, None)
    pooled, _ = shown({"all": [1, 2, 40, 60]}, parts=True)  # two numbers that are 3 together tell of both
    assert pooled == (None, None, None, 60.0)


def test_a_small_number_of_a_silo_does_not_follow_from_those_of_the_others() -> None:
    pooled, each = shown({"a": [2, 30], "b": [20, 30], "c": [10, 30]}, parts=False)
    assert pooled == (32.0, 90.0)
    assert each["a"] == (None, 30.0) and each["c"] == (None, 30.0) and each["b"] == (20.0, 30.0)
    pooled, each = shown({"a": [0], "b": [0], "c": [20]}, parts=False)  # 20 of 20 would tell that two have none
    assert pooled == (20.0,) and each == {"a": (None,), "b": (None,), "c": (None,)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=2, max_size=5), st.booleans())
def test_hidden_numbers_of_a_known_sum_are_two_and_not_small_together(rows: list[list[int]], parts: bool) -> None:
    named = {f"silo{at}": row for at, row in enumerate(rows)}
    pooled, each = shown(named, parts=parts)
    for at in range(3):
        own = [row[at] for row in each.values()]
        hidden = [row[at] for row, number in zip(rows, own, strict=True) if number is None]
        if pooled[at] is None:
            assert own.count(None) >= 1
        else:
            assert not hidden or (len(hidden) > 1 and sum(hidden) >= 5)
    for numbers, row in [*((each[name], row) for name, row in named.items()), (pooled, [sum(c) for c in zip(*rows)])]:
        hidden = [number for shown_, number in zip(numbers, row, strict=True) if shown_ is None]
        assert not parts or not hidden or len(hidden) == 3 or (len(hidden) > 1 and sum(hidden) >= 5)
        assert all(shown_ is None or (shown_ >= 5 and shown_ == number) for shown_, number in zip(numbers, row))


def test_the_first_and_the_last_bin_are_wide_enough_to_be_shown() -> None:
    edges = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, INF)
    rows = [np.array([0.0, 1.0, 2.0, 9.0, 3.0, 0.0]), np.array([0.0, 0.0, 3.0, 9.0, 1.0, 1.0])]
    found, merged = with_wide_ends(edges, rows, 5)
    assert found == (0.0, 4.0, 8.0, INF)
    assert [row.tolist() for row in merged] == [[3.0, 9.0, 3.0], [3.0, 9.0, 2.0]]
    few, one = with_wide_ends(edges, [np.array([0.0, 1.0, 0.0, 1.0, 0.0, 0.0])], 5)
    assert few == (0.0, INF) and one[0].tolist() == [2.0]


def test_a_silo_that_missed_a_round_is_named() -> None:
    known = Question("units", "units", cells=("units",))
    words = Question("words", "words", found=Found(longest=2, width=2))
    plan = CountPlan(("a", "b"), (known, words), by_silo=True)
    vector = np.zeros(plan.size)
    for round in range(plan.rounds):
        vector[plan.present(round)] = [1.0, float(round == 0)]
    stats = read(CountRule(plan), vector, min_count=1, unit="row")
    assert stats.absent == {"b": 2}
    assert any("lack them: b in 2." in line or "b in 2" in line for line in who_sees(stats))


def test_where_single_units_are_shown_no_bin_is_widened() -> None:
    lengths = Question("tokens", "tokens", edges=(0.0, 1.0, 2.0, 4.0, INF))
    plan = CountPlan(("a", "b"), (lengths,), by_silo=True)
    vector = np.zeros(plan.size)
    vector[plan.present(0)] = 1.0
    (place,) = plan.in_round(0)
    vector[place.block(0)], vector[place.block(1)] = [0.0, 2.0, 1.0, 0.0], [0.0, 0.0, 7.0, 0.0]
    (table,) = read(CountRule(plan), vector, min_count=1, unit="row").tables
    assert (table.edges, table.pooled) == (lengths.edges, (0.0, 2.0, 8.0, 0.0)) and table.silos["a"] == (0, 2, 1, 0)
    (table,) = read(CountRule(plan), vector, min_count=2, unit="row").tables
    assert table.edges == (0.0, 2.0, INF) and table.pooled == (2.0, 8.0)


def test_the_threshold_of_found_names_is_the_largest_of_all_levels() -> None:
    words = Question("words", "words", found=Found(longest=2, width=4), most=4)
    plan, noise = CountPlan(("a", "b"), (words,), by_silo=True), Noise(1.0)
    vector = np.zeros(plan.size)
    for round in range(plan.rounds):
        vector[plan.present(round)] = 1.0
    levels = [place.start for round in range(plan.rounds) for place in plan.in_round(round)]
    for byte in b"xyz":
        vector[levels[0] + byte] = 50.0
    vector[levels[1] + END] = 40.0
    stats = read(CountRule(plan, noise), vector, min_count=1, unit="row")
    (table,) = stats.tables
    assert (table.cells, table.pooled, table.kind) == (("x",), (40.0,), "found") and table.deviation == 2 * 2**0.5
    assert table.threshold == threshold(2 * 2**0.5, 3 * BRANCHES)  # of the second level, with three beginnings
