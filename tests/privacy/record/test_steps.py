"""Noised steps: by hand, the bound on what a unit changes, the size of the noise, and what is drawn from what."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.privacy.record import silo as module
from fedtorch.privacy.record.silo import Silo
from fedtorch.privacy.record.steps import LIMIT, NoisedSteps, Place, add_bounded
from fedtorch.privacy.record.terms import SiloTerms

KEY = bytes(range(32))
FACTS = [b"weights"]


def terms(units: int = 100, batch: int = 10, z: float = 1.0, clip: float = 1.0) -> SiloTerms:
    return SiloTerms("a", units, batch, math.ceil(units / batch), 1, z, clip, 1e-4, None)


def begun(
    how: SiloTerms | None = None, *, key: bytes = KEY, facts: Sequence[bytes] = FACTS, place: Place | None = None
) -> NoisedSteps:
    return NoisedSteps(Silo(key, None), how or terms(), place or Place(0, "train"), "normal", facts)


def test_a_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers, three rows, noise (.3, -.45) in units of zC."""

    def add(total: np.ndarray[Any, Any], deviation: float, stream: object) -> None:
        np.add(total, np.rint(np.array([0.3, -0.45]) * deviation), out=total)

    monkeypatch.setattr(module, "ADD", {"normal": add})
    monkeypatch.setattr(SiloTerms, "exponent", 8)
    w = torch.tensor([1.0, -1.0])
    rows = [((3.0, 4.0), 1.0), ((0.6, 0.8), -0.2), ((0.0, 2.0), -2.0)]
    steps, total = begun(terms(units=4, batch=2)), np.zeros(2)
    parts = []
    for x, y in rows:
        before = total.copy()
        x = torch.tensor(x)
        steps.add(total, (w @ x - y) * x)
        parts.append((total - before).tolist())
    assert parts == [[-153.0, -204.0], [0.0, 0.0], [0.0, 0.0]]
    gradient = steps.release(total)
    assert gradient.tolist() == [-0.1484375, -0.623046875]
    assert (w.double() - 0.1 * torch.from_numpy(gradient)).tolist() == [1.01484375, -0.9376953125]
    assert steps.release(np.zeros(2)).tolist() == [0.150390625, -0.224609375]  # of an empty batch


gradients = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1, max_size=8)


@given(gradients, st.floats(1e-3, 1e3), st.integers(0, 7))
def test_one_unit_more_changes_a_sum_by_the_clip_at_most(rows: list[list[float]], clip: float, one: int) -> None:
    exponent, with_it, without = 30 - round(math.log2(clip)), np.zeros(3), np.zeros(3)
    for place, row in enumerate(rows):
        add_bounded(with_it, torch.tensor(row), clip, exponent)
        if place != one % len(rows):
            add_bounded(without, torch.tensor(row), clip, exponent)
    difference = [int(number) for number in with_it - without]
    assert (with_it == np.rint(with_it)).all()
    assert sum(number * number for number in difference) <= (clip * 2.0**exponent) ** 2


def test_a_short_gradient_is_as_it_is_and_a_long_one_keeps_its_direction() -> None:
    total = np.zeros(2)
    assert add_bounded(total, torch.tensor([0.25, -0.5]), 1.0, 4) == pytest.approx(0.5590, abs=1e-4)
    assert total.tolist() == [4.0, -8.0]
    total[:] = 0
    add_bounded(total, torch.tensor([300.0, -400.0]), 1.0, 20)
    assert total[0] / total[1] == pytest.approx(-0.75, abs=1e-5)
    assert math.hypot(*total) == pytest.approx(2.0**20, rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_adds_nothing(bad: float) -> None:
    total = np.ones(3)
    assert not math.isfinite(add_bounded(total, torch.tensor([1.0, bad, 0.0]), 1.0, 10))
    assert total.tolist() == [1.0, 1.0, 1.0]


def test_the_noise_has_its_variance_in_every_step_and_silo() -> None:
    found = []
    for key, z, clip, batch in ((KEY, 1.0, 1.0, 10), (bytes(32), 2.0, 0.5, 4)):
        steps = begun(terms(batch=batch, z=z, clip=clip), key=key)
        for _ in range(2):
            noise = steps.release(np.zeros(1_000_000))
            assert noise.var() == pytest.approx((z * clip / batch) ** 2, rel=5e-3)
            assert abs(noise.mean()) < 5 * z * clip / batch / 1000
            found.append(noise)
    for one in range(4):
        for other in range(one):
            assert abs(np.corrcoef(found[one], found[other])[0, 1]) < 5e-3


def test_each_unit_is_in_a_batch_with_the_same_probability_and_batches_are_empty_at_times() -> None:
    steps, counts, sizes = begun(terms(units=20, batch=2)), np.zeros(17), []
    draws = 2000
    for _ in range(draws):
        batch = steps.batch(17)  # as many as there are, not as many as are declared
        counts[batch] += 1
        sizes.append(len(batch))
        steps.release(np.zeros(1))
    deviation = math.sqrt(draws * 0.1 * 0.9)
    assert (np.abs(counts - draws * 0.1) < 4 * deviation).all()
    assert abs(sizes.count(0) - draws * 0.9**17) < 4 * math.sqrt(draws * 0.9**17 * (1 - 0.9**17))
    pairs = np.corrcoef(sizes[:-1], sizes[1:])[0, 1]
    assert abs(pairs) < 4 / math.sqrt(draws)


def told(steps: NoisedSteps, sums: Sequence[float], units: int = 100) -> list[Any]:
    """All that a training draws while its sums are these."""
    found: list[Any] = []
    for number in sums:
        found += [steps.batch(units), steps.coins(), steps.release(np.full(3, float(number))).tolist()]
    return found


def test_the_same_step_has_the_same_bits() -> None:
    assert told(begun(), [1, 2, 3]) == told(begun(), [1, 2, 3])


@pytest.mark.parametrize(
    "other",
    [
        lambda: begun(key=bytes(32)),
        lambda: begun(facts=[b"weight", b"s"]),
        lambda: begun(place=Place(1, "train")),
        lambda: begun(place=Place(0, "personal")),
    ],
    ids=["key", "facts", "round", "purpose"],
)
def test_another_training_draws_everything_anew(other: Callable[[], NoisedSteps]) -> None:
    one, two = told(begun(), [1, 2]), told(other(), [1, 2])
    assert all(mine != theirs for mine, theirs in zip(one, two, strict=True))


def test_after_a_sum_that_differs_batches_coins_and_noise_are_fresh() -> None:
    one, two = told(begun(), [1, 2, 2]), told(begun(), [1, 3, 2])
    assert one[:5] == two[:5]  # up to the second sum, which had the same batch
    assert all(mine != theirs for mine, theirs in zip(one[5:], two[5:], strict=True))
    noises = [np.array(found[place]) - number * 2.0**-32 / 10 for found, place, number in ((one, 5, 2), (two, 5, 3))]
    assert not np.allclose(*noises)  # never one noise on two sums


def test_rows_of_a_person_are_drawn_anew_in_each_step() -> None:
    steps, seen = begun(), np.zeros(5)
    for _ in range(1000):
        rows = steps.rows(3, 5, 2)
        assert len(rows) == 2 and rows == sorted(set(rows))
        seen[rows] += 1
        steps.release(np.zeros(1))
    assert (np.abs(seen - 400) < 4 * math.sqrt(1000 * 0.4 * 0.6)).all()
    assert steps.rows(3, 2, 2) == [0, 1] and steps.rows(3, 1, 8) == [0]
    assert steps.rows(3, 500, 8) != steps.rows(4, 500, 8)


def test_a_training_without_steps_leaves_no_line() -> None:
    silo = Silo(KEY, None)
    assert NoisedSteps(silo, terms(), Place(0, "train"), "normal", FACTS).may_leave()
    assert silo.trainings() == []


def test_a_training_is_entered_with_its_steps_and_terms() -> None:
    silo = Silo(KEY, None, "run")
    steps = NoisedSteps(silo, terms(z=2.0), Place(3, "personal"), "normal", FACTS)
    assert all(type(steps.coins()) is int and 0 <= steps.coins() < 2**63 for _ in range(3))
    for _ in range(3):
        steps.release(np.zeros(2))
    assert steps.may_leave()
    (one,) = silo.trainings()
    assert (one.run, one.round, one.purpose, one.attempt, one.steps) == ("run", 3, "personal", 0, 3)
    assert (one.rate, one.noise_multiplier, one.delta) == (0.1, 2.0, 1e-4) and one.start != one.end


def test_sums_of_as_many_units_as_there_may_be_are_exact() -> None:
    assert LIMIT * 2**19 * 2.0 ** terms(units=2**19, batch=1).exponent <= 2**51


def test_discrete_noise_has_its_variance_too() -> None:
    steps = NoisedSteps(Silo(KEY, None), terms(z=2.0), Place(0, "train"), "discrete", FACTS)
    assert steps.release(np.zeros(5000)).var() == pytest.approx((2.0 / 10) ** 2, rel=0.1)


def drawn(steps: NoisedSteps) -> list[Any]:
    """All that the next two steps draw."""
    return [
        (steps.batch(100), steps.coins(), steps.rows(0, 9, 4), steps.release(np.full(5, float(n))).tolist())
        for n in (1, 2)
    ]


def test_steps_that_go_on_draw_what_they_would_have_drawn_and_count_the_earlier_ones() -> None:
    silo = Silo(KEY, None)
    whole, again = (NoisedSteps(silo, terms(), Place(0, "train"), "normal", FACTS) for _ in range(2))
    for n in range(3):
        whole.release(np.full(5, float(n)))
    written = whole.written()
    assert again.is_of(written)
    again.go_on(written, 3)
    assert again.written() == written and drawn(again) == drawn(whole)
    assert again.may_leave() and whole.may_leave()
    assert [one.steps for one in silo.trainings()] == [5, 5] and len(silo.parts()) == 1  # counted once
    assert silo.parts()[0][2] == 5


def test_what_is_written_of_another_training_attempt_or_key_is_not_its_own(tmp_path: Path) -> None:
    written = begun().written()
    assert begun().is_of(written)
    assert not begun(facts=[b"others"]).is_of(written) and not begun(key=bytes(32)).is_of(written)
    assert not any(begun().is_of(bad) for bad in (b"", written[:-1], written + b"0", b"1" + written[1:], b"\xff"))
    silo = Silo.open(tmp_path, "run")
    first = NoisedSteps(silo, terms(), Place(0, "train"), "normal", FACTS)
    for steps, total in ((first, 0.0), (NoisedSteps(silo, terms(), Place(0, "train"), "normal", FACTS), 1.0)):
        steps.release(np.full(5, total))
        left = steps.may_leave()
    assert not left
    assert not NoisedSteps(silo, terms(), Place(0, "train"), "normal", FACTS).is_of(first.written())
