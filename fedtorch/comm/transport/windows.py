"""Windows of a vector, which travel and are added one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Vectors are summed window by window, so that the sum stays in the cache and no rank ever holds one of full length:
# 4 MB of fp32 to send, 8 MB of float64 to reduce. Smaller windows cost more in messages than they save.
WINDOW = 1 << 20
SUM_DTYPE = torch.float64


def windows(size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of the consecutive windows of a vector of `size` elements."""
    for start in range(0, size, WINDOW):
        yield start, min(start + WINDOW, size)


def slice_of(size: int, ranks: int, place: int) -> tuple[int, int]:
    """(start, stop) of the slice of the rank at `place` of `ranks`, which are as equal as can be."""
    return size * place // ranks, size * (place + 1) // ranks
