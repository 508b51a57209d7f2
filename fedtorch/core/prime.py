"""Numbers modulo the prime 2^61 − 1, as vectors of uint64: of tags, and of the words that hide them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

P = (1 << 61) - 1
"""The prime."""
Words = npt.NDArray[np.uint64]


def reduced(words: Words) -> Words:
    """The last 61 bits of each, modulo p: below p."""
    kept = words & np.uint64(P)
    kept[kept == P] = 0
    return kept


def added(parts: Iterable[Words], count: int) -> Words:
    """Sum of vectors of numbers below p; so are its numbers. count: numbers of each."""
    total = np.zeros(count, np.uint64)
    for part in parts:
        total += part  # below 2^62
        np.subtract(total, np.uint64(P), out=total, where=total >= P)
    return total


def negative(part: Words) -> Words:
    """Numbers that add up to 0 with these."""
    return np.where(part == 0, np.uint64(0), np.uint64(P) - part)
