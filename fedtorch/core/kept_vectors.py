"""Vectors whose memory is used again once nobody has them any more."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor


class Lender(Protocol):
    """Lends vectors."""

    def lend(self, size: int, dtype: torch.dtype) -> Tensor:
        """A CPU vector, shape (size,), that holds what was left in it."""


def lent(memory: Tensor, give_back: Callable[[], object]) -> Tensor:
    """Return the memory as a tensor; `give_back` is called when the last one that shares it is gone."""
    view = memory.numpy()  # the lent tensor's storage holds this array, which holds `memory`
    weakref.finalize(view, give_back).atexit = False
    return torch.from_numpy(view)


def _in_own_memory(size: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype)


class KeptVectors:
    """Lends vectors, and keeps their memory for the next one of the same length and dtype.

    A round's vectors are the next round's, so that the system need not clear new pages in every round. What was not
    asked for in a whole round is given up.
    """

    def __init__(self, make: Callable[[int, torch.dtype], Tensor] | None = None) -> None:
        """make: a new vector of some size and dtype; None: in memory of its own."""
        self._make = make or _in_own_memory
        self._free: defaultdict[tuple[int, torch.dtype], list[Tensor]] = defaultdict(list)
        self._asked: set[tuple[int, torch.dtype]] = set()

    def lend(self, size: int, dtype: torch.dtype) -> Tensor:
        """A CPU vector, shape (size,), that holds what was left in it.

        It comes back by itself when the last tensor or array that shares its memory is gone, so it may be kept for
        any time. dtype: one that numpy has.
        """
        key = size, dtype
        self._asked.add(key)
        free = self._free[key]
        memory = free.pop() if free else self._make(size, dtype)
        return lent(memory, partial(free.append, memory))

    def end_round(self) -> None:
        """Give up what was not asked for since the last call."""
        for key in set(self._free) - self._asked:
            del self._free[key]
        self._asked.clear()
