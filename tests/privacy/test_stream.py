"""What is drawn from a key: against published vectors, and against the distributions that it is to follow."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedtorch.privacy.stream import CHUNK, Stream, add_noise, chosen, derived

KEY = bytes(range(32))


def test_the_stream_is_chacha20_of_rfc_8439() -> None:
    """Appendix A.1, test vector 1: key, nonce and counter 0."""
    assert Stream(bytes(32)).integers(2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_every_purpose_round_and_attempt_has_a_key_of_its_own() -> None:
    asked = [(p, r, a) for p in ("noise", "cohort") for r in (0, 1, 11) for a in (0, 1)]
    keys = {derived(KEY, *where) for where in asked} | {derived(bytes(32), *where) for where in asked}
    assert len(keys) == 2 * len(asked) and all(len(key) == 32 for key in keys)


def test_noise_on_weights_that_nobody_trains_is_normal() -> None:
    """10^6 numbers under a fixed key: variance, and a chi-square test over 100 bins of equal probability."""
    numbers = np.concatenate(list(Stream(derived(KEY, "noise")).normals(10**6)))
    assert abs(numbers.mean()) < 4e-3 and abs(numbers.var() - 1) < 4 * math.sqrt(2e-6)
    counts = np.histogram(stats.norm.cdf(numbers), bins=100, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 4e-3
    assert np.abs(numbers).max() < 9.5


@pytest.mark.parametrize("count", [0, 1, 2, 3, 2 * CHUNK - 1, 2 * CHUNK + 1])
def test_as_many_numbers_as_asked_for(count: int) -> None:
    assert sum(map(len, Stream(KEY).normals(count))) == count


def test_normal_numbers_are_those_of_box_and_muller_by_hand() -> None:
    """Radii from the first half of the integers, angles from the other; all cosines, then all sines."""
    radii, angles = np.split(Stream(KEY).integers(4), 2)
    both = [
        (math.sqrt(-2 * math.log((int(r) + 0.5) / 2**64)), 2 * math.pi * (int(a) >> 11) / 2**53)
        for r, a in zip(radii, angles, strict=True)
    ]
    expected = [r * math.cos(a) for r, a in both] + [r * math.sin(a) for r, a in both]
    (found,) = Stream(KEY).normals(4)
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    (odd,) = Stream(KEY).normals(3)
    assert odd.tolist() == found[:3].tolist()


class Fixed(Stream):
    """Integers that were chosen."""

    def __init__(self, *integers: int) -> None:
        self.left = list(integers)

    def integers(self, count: int) -> npt.NDArray[np.uint64]:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, np.uint64)


def test_the_largest_and_the_smallest_number_that_can_be_drawn() -> None:
    (found,) = Fixed(0, 0).normals(2)
    assert found.tolist() == [pytest.approx(9.4926, abs=1e-4), 0.0]
    (found,) = Fixed(2**64 - 1, 2**64 - 1).normals(2)
    assert found.tolist() == [0.0, 0.0]


def test_who_is_chosen_is_below_the_rate_and_not_at_it() -> None:
    assert list(chosen(Fixed(0, 2**62 - 1, 2**62, 2**64 - 1), 4, 0.25)) == [0, 1]


def test_noise_is_whole_and_the_same_again() -> None:
    first, second = np.full(1000, 7.0), np.full(1000, 7.0)
    for total in (first, second):
        add_noise(total, 2.0**30, Stream(KEY))
    assert np.array_equal(first, second) and np.array_equal(first, np.rint(first)) and first.std() > 2**29


def test_poisson_draws_have_their_rate_and_are_independent() -> None:
    """10 clients, 10^5 rounds under a fixed key: marginals and pairs within 4 standard deviations."""
    rate, rounds, clients = 0.1, 100_000, 10
    drawn = np.zeros(rounds * clients)
    drawn[list(chosen(Stream(derived(KEY, "cohort")), len(drawn), rate))] = 1
    drawn = drawn.reshape(rounds, clients)
    slack = 4 * math.sqrt(rate * (1 - rate) / rounds)
    assert np.abs(drawn.mean(axis=0) - rate).max() < slack
    pairs = drawn.T @ drawn / rounds
    off = pairs[~np.eye(clients, dtype=bool)]
    assert np.abs(off - rate**2).max() < 4 * math.sqrt(rate**2 * (1 - rate**2) / rounds)
    sizes = drawn.sum(axis=1)
    assert abs((sizes == 0).mean() - 0.9**10) < 4 * math.sqrt(0.35 * 0.65 / rounds)
    assert abs(sizes.var() - clients * rate * (1 - rate)) < 0.02


def test_everybody_and_hardly_anybody() -> None:
    assert list(chosen(Stream(KEY), 5, 1.0)) == [0, 1, 2, 3, 4]
    assert list(chosen(Stream(KEY), 1000, 2.0**-60)) == []
