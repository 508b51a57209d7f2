"""Inner products of all updates with one another, window by window: the same bits on any number of threads and ranks.

A sum of floating-point products has other last bits wherever a library adds in another order. So every piece of a
vector is split into two whole numbers of 20 bits each, at a power of two of its own: 4096 products of them stay below
2^53, which float64 adds exactly, in any order. The product of the two lower parts, some 2^-40 of the largest, is left
out. Pieces are then added in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.core.update import Report

PIECE = 1 << 12
BITS = 20


class Rows(Protocol):
    """Where the updates come from."""

    @property
    def reports(self) -> Sequence[Report]: ...

    def each_window(self, see: Callable[[Tensor], None]) -> None: ...


def inner_products(updates: Rows) -> npt.NDArray[np.float64]:
    """⟨Δ_i, Δ_j⟩, shape (clients, clients), symmetric; off by at most some 2^-39 of max|Δ_i|·max|Δ_j| per number."""
    count = len(updates.reports)
    total = torch.zeros(count, count, dtype=torch.float64)

    def see(rows: Tensor) -> None:
        for start in range(0, rows.shape[1], PIECE):
            total.add_(_of_piece(rows[:, start : start + PIECE].double()))

    updates.each_window(see)
    return total.numpy()


def _of_piece(rows: Tensor) -> Tensor:
    """Products of at most `PIECE` columns."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    exponents = torch.frexp(largest).exponent.numpy()
    unit = torch.from_numpy(np.ldexp(1.0, exponents - BITS))  # |upper| <= 2^BITS; torch's ldexp goes through fp32
    scaled = rows / unit
    upper = scaled.round()
    lower = ((scaled - upper) * 2.0**BITS).round()
    cross = upper @ lower.T
    found = upper @ upper.T + (cross + cross.T) * 2.0**-BITS
    return found * unit * unit.T
