"""Canary clients find how much noise there really is."""

from __future__ import annotations

import math

import pytest

from fedtorch.audit.canaries import estimate, gaussian, of_the_package
from fedtorch.audit.gaussians import epsilon_between, gaussian_epsilon

DELTA = 1e-5


def noise_for(epsilon: float) -> float:
    """The noise multiplier of one release with this epsilon, by bisection."""
    low, high = 0.01, 100.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, DELTA) > epsilon else (low, middle)
    return high


def test_the_closed_form_is_the_published_one() -> None:
    assert gaussian_epsilon(1.0, DELTA) == pytest.approx(4.377178, abs=1e-6)


@pytest.mark.parametrize(("claimed", "truth"), [(1.0, 2.155), (3.0, 6.706), (10.0, 24.389)])
def test_half_the_noise_is_more_than_twice_the_epsilon(claimed: float, truth: float) -> None:
    assert gaussian_epsilon(noise_for(claimed) / 2, DELTA) == pytest.approx(truth, abs=2e-3)


def test_two_deviations_can_be_told_apart_without_a_shift() -> None:
    # P(L > eps) for N(0, 4) against N(0, 1): the numbers below are those of a sum over a fine grid
    epsilon = epsilon_between(0.0, 2.0, 1.0, DELTA)
    step, grid = 1e-3, [place * 1e-3 for place in range(-40000, 40001)]

    def density(x: float, s: float) -> float:
        return math.exp(-x * x / (2 * s * s)) / (s * math.sqrt(2 * math.pi))

    delta = sum(max(0.0, density(x, 2.0) - math.exp(epsilon) * density(x, 1.0)) for x in grid) * step
    assert delta == pytest.approx(DELTA, rel=1e-2)
    assert epsilon_between(0.0, 1.0, 1.0, DELTA) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claimed", "factor", "low", "high"),
    [
        (1.0, 1.0, 0.9, 1.85),
        (3.0, 1.0, 2.8, 4.2),
        (10.0, 1.0, 9.5, 12.5),
        (1.0, 0.5, 1.8, 3.2),
        (3.0, 0.5, 6.0, 8.4),
        (10.0, 0.5, 22.0, 28.5),
    ],
)
def test_canaries_estimate_the_epsilon_that_there_is(claimed: float, factor: float, low: float, high: float) -> None:
    mechanism = gaussian(0.5, factor * noise_for(claimed), seed=1)
    found = estimate(mechanism, numbers=100_000, clip=0.5, delta=DELTA, canaries=500)
    print(claimed, factor, found.epsilon)
    assert low < found.epsilon < high


def test_a_missing_factor_of_two_is_found_in_a_second() -> None:
    promised = noise_for(3.0)
    found = [
        estimate(gaussian(0.5, share * promised, seed=1), numbers=20_000, clip=0.5, delta=DELTA, canaries=100).epsilon
        for share in (1.0, 0.5)
    ]
    assert found[0] < 1.6 * 3.0
    assert found[1] > 1.8 * 3.0


@pytest.mark.parametrize("claimed", [3.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_the_packages_own_noise_is_as_much_as_it_promises(claimed: float) -> None:
    """Its clip, whole numbers, key stream and denominator, under a fixed key; half of the noise would be noticed."""
    promised, found = noise_for(claimed), []
    for share in (1.0, 0.5):
        outgoing, release = of_the_package(0.5, share * promised, clients=200, key=bytes(range(32)))
        found.append(estimate(release, numbers=20_000, clip=0.5, delta=DELTA, canaries=200, outgoing=outgoing).epsilon)
    print(claimed, found)
    assert 0.7 * claimed < found[0] < 1.6 * claimed
    assert found[1] > 1.8 * claimed


@pytest.mark.parametrize(("canaries", "numbers"), [(1, 100), (11, 10)])
def test_canaries_that_hide_each_other_are_refused(canaries: int, numbers: int) -> None:
    with pytest.raises(ValueError, match="canaries"):
        estimate(lambda total: total, numbers=numbers, clip=1.0, delta=DELTA, canaries=canaries)
