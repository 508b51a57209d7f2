"""The discrete normal distribution, drawn exactly (Canonne, Kamath and Steinke 2020, arXiv 2004.00010).

P(n) ∝ exp(−n² / 2σ²) over the whole numbers. Only uniform bits of a stream and rational numbers are used, so that no
probability is rounded, no tail is cut off, and the numbers are the same on every machine.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedtorch.privacy.stream import Stream

_WORDS = 1 << 12  # of 64 bits, drawn together


class DiscreteNormal:
    """Numbers of standard deviation parameter `deviation`, above 0, one after the other from `stream`."""

    def __init__(self, deviation: Fraction, stream: Stream) -> None:
        self._stream = stream
        self._words: list[int] = []
        self._top, self._bottom = (deviation * deviation).as_integer_ratio()  # σ² = top / bottom
        self._scale = int(deviation) + 1  # t of algorithm 3
        self._divisor = 2 * self._top * self._bottom * self._scale**2

    def draw(self) -> int:
        """Algorithm 3: a discrete Laplace number Y, kept with probability exp(−(|Y| − σ²/t)² / 2σ²)."""
        while True:
            y = self._laplace()
            away = abs(y) * self._scale * self._bottom - self._top
            if self._falls(away * away, self._divisor):
                return y

    def _laplace(self) -> int:
        """Algorithm 2 with s = 1: P(y) ∝ exp(−|y| / t)."""
        while True:
            part = self._below(self._scale)
            if not self._falls(part, self._scale):
                continue
            whole = 0
            while self._falls(1, 1):
                whole += 1
            size = part + self._scale * whole
            if not self._word() & 1:
                return size
            if size:  # −0 is 0 once more
                return -size

    def _falls(self, top: int, bottom: int) -> bool:
        """Algorithm 1: true with probability exp(−top / bottom)."""
        while top > bottom:
            if not self._falls(1, 1):
                return False
            top -= bottom
        count = 1
        while self.happens(top, bottom * count):
            count += 1
        return count % 2 == 1

    def happens(self, top: int, bottom: int) -> bool:
        """True with probability top / bottom, at most 1: a uniform number in [0, 1) is below it.

        Both are compared 64 binary digits at a time, until they differ.
        """
        while 0 < top < bottom:
            digits, top = divmod(top << 64, bottom)
            drawn = self._word()
            if drawn != digits:
                return drawn < digits
        return top >= bottom

    def _below(self, bound: int) -> int:
        """Uniform over 0 … bound − 1."""
        words = -(-bound.bit_length() // 64)
        fair = (1 << 64 * words) // bound * bound  # beyond it the smaller numbers would come more often
        while True:
            drawn = 0
            for _ in range(words):
                drawn = drawn << 64 | self._word()
            if drawn < fair:
                return drawn % bound

    def _word(self) -> int:
        if not self._words:
            self._words = self._stream.integers(_WORDS).tolist()
        return self._words.pop()


def add_discrete(total: npt.NDArray[np.float64], deviation: float, stream: Stream) -> None:
    """Add a discrete normal number to each whole number of `total`, in place."""
    numbers = DiscreteNormal(Fraction(deviation), stream)
    for place in range(len(total)):
        total[place] += numbers.draw()
