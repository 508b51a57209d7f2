"""The only local training loop, and the losses it records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.train.engine import Engine, GradientHook, LossFunction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """One optimiser step."""

    batches: list[Any]
    """Its micro-batches, collated."""
    divisor: int
    """What their mean losses are divided by."""
    epoch: int
    """The epoch it belongs to."""
    terms: int | None = None
    """What the sum of all their losses is divided by in place of that: the terms of all of them together."""

    def objective(self, loss_fn: LossFunction) -> tuple[LossFunction, int]:
        """(loss function, divisor) for `Engine.step`: the mean of the micro-batches' means, or sum over sum."""
        if self.terms is None:
            return loss_fn, self.divisor
        return partial(_over, loss_fn, max(1, self.terms)), 1


@dataclass(frozen=True)
class LossCurve:
    """Losses of one client's local training, step by step."""

    losses: tuple[float, ...] = ()
    """The task's loss of each step (mean over its micro-batches of the mean loss, or over all terms; dropout on)."""
    penalties: tuple[float, ...] = ()
    """What the algorithm added to the objective in each step (FedProx), else 0."""
    epochs: tuple[int, ...] = ()
    """The epoch of each step."""
    left_out: int = 0
    """How many of the steps changed nothing because their gradients overflowed (fp16)."""
    over_budget: int = 0
    """How many of the examples are longer than `client.max_tokens_per_batch`, each a micro-batch of its own."""
    untold: int = 0
    """Steps whose loss a trainer did not tell; then `losses` is empty."""
    told: Mapping[str, float] = field(default_factory=dict)
    """Further numbers that a trainer gave."""

    def __len__(self) -> int:
        return len(self.losses) + self.untold

    @property
    def taken(self) -> int:
        """The steps that changed the weights."""
        return len(self) - self.left_out

    def numbers(self) -> dict[str, float]:
        """For the report: what a trainer told; `left_out` and `over_budget`, where there were any."""
        counts = {"left_out": self.left_out, "over_budget": self.over_budget}
        return {**self.told, **{name: float(count) for name, count in counts.items() if count}}

    def objective(self, *, include_penalty: bool = True) -> list[float]:
        """The loss of each step, with or without the algorithm's penalty."""
        if not include_penalty:
            return list(self.losses)
        return [loss + penalty for loss, penalty in zip(self.losses, self.penalties, strict=True)]


@dataclass
class Taken:
    """Steps of a training so far, and what they gave."""

    losses: list[Tensor] = field(default_factory=list)
    """The loss of each, detached, shape (), on the device."""
    penalties: list[Tensor] = field(default_factory=list)
    """Penalties that the algorithm added to each, in the same form."""
    epochs: list[int] = field(default_factory=list)
    """The epoch of each."""


def train(
    engine: Engine,
    steps: Iterable[Step],
    loss_fn: LossFunction,
    *,
    before_step: GradientHook | None = None,
    after_step: Callable[[int], None] | None = None,
    taken: Taken | None = None,
) -> LossCurve:
    """Take the given steps on an engine that was started, and return the losses.

    before_step(engine): called with all gradients of the step in place, before clipping; may change them.
    after_step(n): called with the number of steps taken so far.
    taken: those before the given ones, which count too; grows with every step.
    The losses stay on the device until the end: nothing waits for the device inside the loop.
    """
    taken = Taken() if taken is None else taken
    for step in steps:
        objective, divisor = step.objective(loss_fn)
        loss, penalty = engine.step(objective, step.batches, divisor, before_step)
        taken.losses.append(loss)
        taken.penalties.append(penalty)
        taken.epochs.append(step.epoch)
        if after_step is not None:
            after_step(len(taken.losses))
    if not taken.losses:
        return LossCurve()
    left_out, count = engine.left_out(), len(taken.losses)
    if left_out:
        level = logging.WARNING if left_out == count else logging.DEBUG
        log.log(level, "%d of %d steps were left out: gradients overflowed in fp16", left_out, count)
    values, added = torch.stack(taken.losses).tolist(), torch.stack(taken.penalties).tolist()
    return LossCurve(tuple(values), tuple(added), tuple(taken.epochs), left_out)


def _over(loss_fn: LossFunction, terms: int, module: nn.Module, batch: Any) -> tuple[Tensor, int]:
    """A micro-batch's part of a loss over so many terms."""
    return loss_fn(module, batch)[0], terms
