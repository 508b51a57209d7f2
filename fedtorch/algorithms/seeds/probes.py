"""Steps without gradients: two losses along a direction give a number, by which the weights go along it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtorch.core.directions import Kind, shift
from fedtorch.core.errors import UpdateError
from fedtorch.train.engine import Engine
from fedtorch.train.forward import mean_loss
from fedtorch.train.job import Trainable
from fedtorch.train.loop import Step

LIMIT = 2**24 - 1
"""The largest whole number whose neighbours fp32 has too."""


@dataclass
class Probes:
    """One client's weights while it trains, and what it has measured.

    The weights stay apart from the module, which gets round(w + ε z) for each loss. So what was added is never taken
    off again by arithmetic, and w changes by steps alone.
    """

    engine: Engine
    """has the client's weights loaded, in evaluation mode"""
    task: Trainable
    """whose loss is measured"""
    weights: Tensor
    """flat, on the CPU; changed by `move`"""
    kind: Kind
    """of directions"""
    eps: float
    """ε: how far a loss is from the weights"""
    is_one_sided: bool = False
    """are losses compared with that at the weights, in place of that on the other side?"""
    losses: list[float] = field(default_factory=list)
    """that were measured in the present step"""
    _at_weights: float | None = None
    """loss at the weights, on the present step's batch"""
    _room: Tensor | None = None
    """where the module's weights are made that lie on another device"""

    def begin_step(self) -> None:
        """Nothing of the last step's batch is left."""
        self.losses, self._at_weights = [], None

    def slope(self, step: Step, seed: int) -> tuple[float, float]:
        """(difference of the two losses along a seed's direction on a step's batch, that by its length)."""
        ahead = self._loss(step, seed, self.eps)
        if not self.is_one_sided:
            difference = ahead - self._loss(step, seed, -self.eps)
            return difference, difference / (2 * self.eps)
        if self._at_weights is None:
            self._at_weights = self._loss(step, seed, 0.0)
        difference = ahead - self._at_weights
        return difference, difference / self.eps

    def move(self, seed: int, amount: float) -> None:
        """w ← w − amount · z, each number rounded once."""
        shift(self.weights.numpy(), self.kind, seed, -amount, self.weights.numpy())

    def load(self, seed: int = 0, amount: float = 0.0) -> None:
        """Give the module round(w + amount · z); by default w."""
        flat = self.engine.flat.detach()
        room = flat if flat.device.type == "cpu" else self._spare()
        if amount:
            shift(self.weights.numpy(), self.kind, seed, amount, room.numpy())
        else:
            room.copy_(self.weights)
        if room is not flat:
            flat.copy_(room)

    def _spare(self) -> Tensor:
        self._room = torch.empty_like(self.weights) if self._room is None else self._room
        return self._room

    def _loss(self, step: Step, seed: int, amount: float) -> float:
        self.load(seed, amount)
        before = torch.default_generator.get_state()
        objective, divisor = step.objective(self.task.loss)
        found = mean_loss(self.engine, objective, step.batches, divisor)
        if not torch.equal(before, torch.default_generator.get_state()):
            raise UpdateError(
                "the task's loss draws at random, also without dropout, so two losses differ by what was drawn and not "
                "by the weights; such a task cannot be trained without gradients"
            )
        if math.isfinite(found):
            self.losses.append(found)
        return found


def whole(slope: float, bits: int) -> int | None:
    """Return slope · 2^bits as a whole number, ties to even; None where it is not finite."""
    return round(math.ldexp(slope, bits)) if math.isfinite(slope) and abs(slope) < 2.0**900 else None
