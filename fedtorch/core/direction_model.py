"""Weights that follow from the initial ones and from a sum for each of many directions, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.core.directions import LARGEST, UNIT, Kind, add_along


class FollowingWeights(Protocol):
    """A rule that makes the weights of the first vector that is exchanged."""

    def weights(self, initial: Tensor, sums: Tensor) -> Tensor:
        """Flat weights on the CPU, not to be changed. initial: those that the run begins with. sums: the vector."""
        ...


EXACT = 2**52
"""Up to where a sum of absolute whole numbers is kept: below it float64 adds them exactly, in any order."""
_BLOCK = 1 << 16  # numbers that are looked at together


@dataclass
class DirectionModel:
    """w_i = w0_i − step · S_i, with S_i = Σ_j A_j z_ij: whole numbers, so whoever adds them in whatever order gets S.

    A rank keeps S, 8 bytes a number, and adds what has changed in A since it was asked last. Each w_i is computed in
    float64 and rounded once. With `normal` directions there are no whole numbers: S is made anew, in the seeds' order.
    """

    kind: Kind
    """distribution of z"""
    seeds: Sequence[int]
    """of each direction, in the order of A"""
    step: float
    """what a whole number of A stands for, times the learning rate"""
    passes: int = 0
    """directions that were added so far, each one pass over all numbers"""
    _sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), repr=False)
    """S"""
    _held: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    """the A that S is of"""
    _weights: Tensor | None = field(default=None, repr=False)
    """what S comes to"""

    def weights(self, initial: Tensor, sums: Tensor) -> Tensor:
        """The weights of the sums A, flat on the CPU: the same memory at every call, not to be changed.

        initial: w0, flat on the CPU, the same at every call. sums: A, float64 of whole numbers, shape (seeds,).

        Raises:
            ValueError: A has another length than there are seeds.
        """
        now = sums.numpy()
        if now.shape != (len(self.seeds),):
            raise ValueError(f"{now.size} sums were given for {len(self.seeds)} directions; expected one each")
        if self._weights is not None and self._held is not None and np.array_equal(now, self._held):
            return self._weights
        self._add(now, initial.numel())
        self._weights = torch.empty_like(initial) if self._weights is None else self._weights
        scale, first, out = self.step / UNIT[self.kind], initial.numpy(), self._weights.numpy()
        for start in range(0, len(out), _BLOCK):
            part = slice(start, start + _BLOCK)
            out[part] = first[part].astype(np.float64) - self._sums[part] * scale
        return self._weights

    def _add(self, now: npt.NDArray[np.float64], size: int) -> None:
        """Bring S from the A that it is of to another one, in as few passes as can be."""
        held = np.zeros_like(now) if self._held is None else self._held
        changed, whole = np.flatnonzero(now != held), np.flatnonzero(now)
        if self._held is None or self.kind == "normal" or len(whole) < len(changed):
            self._sums = np.zeros(size)
            places, amounts = whole, now[whole]
        else:
            places, amounts = changed, now[changed] - held[changed]
        add_along(self._sums, self.kind, [self.seeds[place] for place in places.tolist()], amounts.tolist())
        self.passes += len(places)
        self._held = now.copy()

    def is_exact(self, sums: Tensor) -> bool:
        """Are the sums so small that every S_i is a whole number below 2^53 for sure?"""
        return bool(float(sums.abs().sum()) * LARGEST[self.kind] <= EXACT)
