"""ε of noised steps on units: the published tables, persons in two silos, rows of one person."""

from __future__ import annotations

import math

import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.record.terms import SiloTerms, epsilon_of, epsilon_of_rows, noise_for, together

pytestmark = pytest.mark.usefixtures("exact_accounts")

slow = pytest.mark.slow


def silo(units: int, batch: int, epochs: int, z: float, delta: float, clip: float = 1.0) -> SiloTerms:
    return SiloTerms("a", units, batch, math.ceil(units / batch), epochs, z, clip, delta, None)


A, B = silo(500, 16, 10, 1.0, 1e-4), silo(500, 64, 20, 2.0, 1e-4)


@pytest.mark.parametrize(
    ("units", "batch", "epochs", "z", "delta", "steps", "epsilon"),
    [
        pytest.param(500, 16, 1, 1.0, 1e-4, 32, 1.1509, marks=slow),
        (500, 64, 20, 2.0, 1e-4, 160, 3.3624),
        (2000, 256, 20, 2.0, 1e-5, 160, 3.9287),
        pytest.param(500, 16, 10, 1.0, 1e-4, 320, 3.1013, marks=slow),
        pytest.param(1000, 32, 5, 1.0, 1e-4, 160, 2.2203, marks=slow),
        pytest.param(2000, 64, 10, 1.2, 1e-5, 320, 2.6223, marks=slow),
        pytest.param(5000, 64, 3, 0.8, 1e-5, 237, 2.3353, marks=slow),
        pytest.param(5000, 128, 10, 1.0, 1e-5, 400, 3.2505, marks=slow),
        pytest.param(10000, 256, 5, 0.7, 1e-5, 200, 5.7884, marks=slow),
        pytest.param(20000, 256, 10, 0.8, 1e-6, 790, 4.2717, marks=slow),
        pytest.param(50000, 64, 1, 0.6, 1e-6, 782, 2.3366, marks=slow),
        pytest.param(50000, 256, 20, 1.0, 1e-6, 3920, 2.0032, marks=slow),
    ],
)
def test_epsilon_of_epochs(
    units: int, batch: int, epochs: int, z: float, delta: float, steps: int, epsilon: float
) -> None:
    terms = silo(units, batch, epochs, z, delta)
    assert terms.steps_in(epochs) == steps
    assert terms.epsilon(epochs) == pytest.approx(epsilon, abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("units", "batch", "epochs", "delta", "found"),
    [
        (500, 500, 20, 1e-4, {3: 5.4701}),
        pytest.param(500, 500, 20, 1e-4, {1: 14.2469, 8: 2.4287}, marks=slow),
        pytest.param(500, 64, 20, 1e-4, {1: 5.2974, 3: 2.1759}, marks=slow),
        pytest.param(500, 16, 5, 1e-4, {1: 1.5605, 3: 0.8753, 8: 0.5989}, marks=slow),
        pytest.param(500, 64, 20, 1e-4, {8: 1.1351}, marks=slow),
        pytest.param(2000, 64, 10, 1e-5, {1: 2.3351, 3: 1.1144, 8: 0.7184}, marks=slow),
        pytest.param(10000, 128, 10, 1e-5, {1: 1.5657, 3: 0.8620, 8: 0.6094}, marks=slow),
        pytest.param(50000, 256, 5, 1e-6, {1: 1.0188, 3: 0.7125, 8: 0.5278}, marks=slow),
    ],
)
def test_the_least_noise_for_an_epsilon(
    units: int, batch: int, epochs: int, delta: float, found: dict[int, float]
) -> None:
    steps = math.ceil(units / batch) * epochs
    for epsilon, z in found.items():
        least = noise_for(epsilon, silo="a", units=units, batch=batch, steps=steps, delta=delta)
        assert least == pytest.approx(z, abs=2e-4)
    with pytest.raises(ConfigError, match=r"silo a: privacy\.epsilon is 1e-05, for which no .* is enough"):
        noise_for(1e-5, silo="a", units=2, batch=2, steps=1, delta=1e-12)


@pytest.mark.long
def test_a_person_in_two_silos_has_both_losses() -> None:
    assert epsilon_of([A.part(320), B.part(160)], 1e-4) == pytest.approx(4.7143, abs=1e-3)
    assert epsilon_of([A.part(0)], 1e-4) == 0.0
    assert together([B], 20) == B.epsilon(20)


@pytest.mark.slow
def test_the_same_steps_twice_and_at_another_delta() -> None:
    assert epsilon_of([A.part(320), A.part(320)], 1e-4) == pytest.approx(4.4467, abs=1e-3)
    assert epsilon_of([A.part(320), B.part(160)], 1e-5) == pytest.approx(5.4796, abs=1e-3)


@pytest.mark.slow
def test_noise_of_half_the_size_costs_far_more() -> None:
    assert epsilon_of([(A.rate, 0.5, 320)], 1e-4) == pytest.approx(18.0899, abs=1e-3)
    assert epsilon_of([(B.rate, 1.0, 160)], 1e-4) == pytest.approx(10.0369, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "epsilon"), [(1, 2.6223), (2, 5.8016), (3, 9.3861)])
def test_a_person_with_several_rows_where_the_unit_is_a_row(rows: int, epsilon: float) -> None:
    found = epsilon_of_rows(rows, rate=0.032, noise_multiplier=1.2, steps=320, delta=1e-5)
    assert found == pytest.approx(epsilon, abs=1e-3)


@pytest.mark.slow
def test_a_person_with_one_row_is_a_row() -> None:
    terms = silo(500, 250, 5, 2.0, 1e-4)
    rows = epsilon_of_rows(1, rate=0.5, noise_multiplier=2.0, steps=10, delta=1e-4)
    assert rows == pytest.approx(terms.epsilon(5), abs=1e-3)


@pytest.mark.long
def test_rounds_that_a_budget_allows() -> None:
    terms = silo(500, 64, 20, 2.0, 1e-4)
    assert terms.rounds_within(terms.epsilon(7)) == 7 and terms.rounds_within(terms.epsilon(7) - 1e-6) == 6
    assert terms.rounds_within(100.0) == 20 and terms.rounds_within(0.0) == 0


def test_epochs_of_the_whole_run_end_the_steps() -> None:
    terms = SiloTerms("a", 500, 16, 32, 10, 1.0, 1.0, 1e-4, None, most_steps=96)
    assert [terms.steps_in(rounds) for rounds in (0, 2, 3, 10)] == [0, 64, 96, 96]


@pytest.mark.parametrize(("clip", "units", "exponent"), [(1.0, 4, 32), (0.5, 400_000 // 2, 33), (1.0, 2**19, 31)])
def test_the_scale_follows_from_clip_and_units(clip: float, units: int, exponent: int) -> None:
    terms = silo(units, 1, 1, 1.0, 1e-7, clip)
    assert terms.exponent == exponent
    assert 2 * units * clip * 2.0**exponent <= 2**51
