"""The discrete normal distribution against its probabilities, and the rational numbers that it is drawn with."""

from __future__ import annotations

import math
import threading
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedtorch.privacy.discrete import DiscreteNormal, add_discrete
from fedtorch.privacy.noise import ADD, Noise
from fedtorch.privacy.stream import Stream, derived

KEY = bytes(range(32))


class Words:
    """A stream of chosen words."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def integers(self, count: int) -> Any:
        found = np.zeros(count, dtype=np.uint64)
        found[len(found) - len(self.words) :] = self.words[::-1]  # taken from the end
        return found


def numbers(deviation: Fraction, count: int, purpose: str = "noise") -> list[int]:
    drawn = DiscreteNormal(deviation, Stream(derived(KEY, purpose)))
    return [drawn.draw() for _ in range(count)]


@pytest.mark.parametrize("deviation", [Fraction(1, 3), Fraction(1), Fraction(7, 3), Fraction(20)], ids=str)
def test_numbers_come_as_often_as_their_probabilities_say(deviation: Fraction) -> None:
    """A chi-square test against exp(−n² / 2σ²) over its sum; bins of less than 5 expected are put together."""
    count, reach = 20_000, int(12 * deviation) + 2
    weights = {n: math.exp(-(n**2) / (2 * float(deviation) ** 2)) for n in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    counted = Counter(numbers(deviation, count))
    assert set(counted) <= set(weights)
    expected, observed, rest = [], [], [0.0, 0]
    for n, weight in weights.items():
        hoped = count * weight / total
        if hoped >= 5:
            expected.append(hoped)
            observed.append(counted[n])
        else:
            rest = [rest[0] + hoped, rest[1] + counted[n]]
    expected, observed = [*expected, rest[0]], [*observed, rest[1]]
    assert stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue > 1e-3


def test_large_ones_have_the_moments_of_the_normal_distribution() -> None:
    drawn = np.array(numbers(Fraction(2.0**31.3), 4000), dtype=np.float64) / 2.0**31.3
    assert abs(drawn.mean()) < 4 / math.sqrt(4000) and drawn.var() == pytest.approx(1.0, abs=4 * math.sqrt(2 / 4000))
    assert stats.kstest(drawn, "norm").pvalue > 1e-3


def test_a_probability_is_compared_digit_by_digit_and_never_rounded() -> None:
    """1/3 is 0x5555… in base 2^64: a word below it is yes, above it no, and at it the next one decides."""
    third = 0x5555555555555555
    for words, happens in (
        ((third - 1,), True),
        ((third + 1,), False),
        ((third, third - 1), True),
        ((third, third, third, third + 1), False),
    ):
        assert DiscreteNormal(Fraction(1), Words(*words)).happens(1, 3) is happens  # type: ignore[arg-type]
    for last, happens in ((2**20 - 1, True), (2**20, False)):  # four words of zeros and 2^-300 · 2^320
        words = Words(0, 0, 0, 0, last)
        assert DiscreteNormal(Fraction(1), words).happens(1, 2**300) is happens  # type: ignore[arg-type]
    assert DiscreteNormal(Fraction(1), Words()).happens(7, 7)  # type: ignore[arg-type]
    assert not DiscreteNormal(Fraction(1), Words()).happens(0, 7)  # type: ignore[arg-type]


def test_the_same_key_draws_the_same_numbers_for_every_deviation_of_a_float() -> None:
    first, second = np.arange(50.0), np.arange(50.0)
    for total in (first, second):
        add_discrete(total, 0.3 * 2.0**32, Stream(KEY))
    assert np.array_equal(first, second) and np.array_equal(first, np.rint(first))
    assert 2**29 < (first - np.arange(50)).std() < 2**32


@pytest.mark.parametrize("kind", ["normal", "discrete"])
def test_noise_that_was_drawn_ahead_has_the_same_bits(kind: str) -> None:
    expected, found, other = np.arange(999.0), np.arange(999.0), np.arange(999.0)
    ADD[kind](expected, 1e6, Stream(derived(KEY, "noise", 3, 0)))
    noise = Noise(kind)
    noise.expect(KEY, 3, 0, 1e6, 999)
    noise.add(found, KEY, 3, 0, 1e6)
    assert np.array_equal(found, expected)
    noise.expect(KEY, 3, 0, 1e6, 999)
    noise.add(other, KEY, 3, 1, 1e6)  # another attempt after all
    again = np.arange(999.0)
    ADD[kind](again, 1e6, Stream(derived(KEY, "noise", 3, 1)))
    assert np.array_equal(other, again) and not np.array_equal(other, expected)


def test_what_was_drawn_ahead_is_taken_if_it_fits_and_not_waited_for_if_not(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, waited = list[str](), threading.Event()

    def slowly(total: Any, deviation: float, stream: Stream) -> None:
        thread = threading.current_thread()
        if thread.name == "noise":
            assert thread.daemon  # a run that ends does not wait for noise
            waited.wait(0.2)
        drawn.append(thread.name)

    monkeypatch.setitem(ADD, "slowly", slowly)  # type: ignore[misc]
    noise = Noise("slowly")
    noise.expect(KEY, 3, 0, 1.0, 9)
    noise.add(np.zeros(9), KEY, 3, 0, 1.0)
    assert drawn == ["noise"]
    noise.expect(KEY, 4, 0, 1.0, 9)
    noise.add(np.zeros(9), KEY, 4, 1, 1.0)
    waited.set()
    assert drawn[1] == "MainThread"
