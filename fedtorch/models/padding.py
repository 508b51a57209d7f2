"""Rows of token ids of different lengths as one tensor, and which of them share a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def pad(rows: Sequence[Sequence[int]], value: int, *, left: bool = False) -> Tensor:
    """int64 tensor of shape (rows, longest row), filled up with `value` on the right, or on the left."""
    longest = max(len(row) for row in rows)
    fill = [[value] * (longest - len(row)) for row in rows]
    return torch.tensor([[*more, *row] if left else [*row, *more] for row, more in zip(rows, fill, strict=True)])


def by_length(lengths: Sequence[int], size: int, *, longest_first: bool = False) -> Iterator[list[int]]:
    """Places of rows by batches of `size`: rows of like length share one, so little is computed on padding."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=longest_first)
    for start in range(0, len(order), size):
        yield order[start : start + size]
