"""Training whose every step goes along a noised sum of single units' gradients, and along nothing else of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from fedtorch.core.seeds import seed_torch
from fedtorch.core.silo_work import Numbers, SiloWork, Steps
from fedtorch.train.batches import StepPlan
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.loop import LossCurve
from fedtorch.train.unit_gradients import HasLoss, UnitGradients

T = TypeVar("T")


@dataclass(frozen=True)
class NoisedTraining:
    """A training of a client along noised sums, before it begins."""

    engine: Engine
    """what is trained"""
    task: HasLoss
    """makes batches of rows and takes their loss"""
    work: SiloWork
    """the client's rows, and how they are noised"""
    client: str
    """its name"""
    purpose: str
    """which training of the round it is"""
    facts: Sequence[bytes | memoryview]
    """all that `start` loads, and the settings"""
    start: Callable[[], None]
    """loads weights and a fresh optimiser state"""
    parts: int = 1
    """into how many the units in memory are cut"""

    def until_it_may_leave(self, attempt: Callable[[UnitGradients, Steps], T]) -> T:
        """Result of the attempt that may leave: one is begun again where others left from the same first batch."""
        physical = max(1, self.work.physical // self.parts)
        gradients = UnitGradients(self.engine, self.task, self.work.per_unit, physical, self.client)
        while True:
            steps = self.work.begin(self.purpose, self.facts)
            self.start()
            found = attempt(gradients, steps)
            if steps.may_leave():
                return found


def train_noised(
    training: NoisedTraining,
    plans: Sequence[StepPlan],
    *,
    before_step: GradientHook | None = None,
    after_step: Callable[[int], None] | None = None,
) -> LossCurve:
    """Take as many steps as there are plans; the losses are those of the batches, which no record may have."""

    def take_steps(gradients: UnitGradients, steps: Steps) -> LossCurve:
        losses, penalties = [], []
        for number, _ in enumerate(plans):
            total, loss = _sum(gradients, training.work, steps)
            along = torch.from_numpy(steps.release(total)).to(torch.float32)
            penalties.append(float(training.engine.step_along(along, before_step)))
            losses.append(loss)
            if after_step is not None:
                after_step(number + 1)
        return LossCurve(tuple(losses), tuple(penalties), tuple(plan.epoch for plan in plans))

    return training.until_it_may_leave(take_steps)


def noised_sum(training: NoisedTraining) -> tuple[torch.Tensor, LossCurve]:
    """This silo's part of a sum of gradients at the weights that the training starts from, with its share of the noise.

    Flat over the trained parameters, float64, on the CPU; nothing is stepped along it here.
    """

    def take_sum(gradients: UnitGradients, steps: Steps) -> tuple[torch.Tensor, LossCurve]:
        total, loss = _sum(gradients, training.work, steps)
        return torch.from_numpy(steps.release(total)), LossCurve((loss,), (0.0,), (0,))

    return training.until_it_may_leave(take_sum)


def _sum(gradients: UnitGradients, work: SiloWork, steps: Steps) -> tuple[Numbers, float]:
    """The bounded gradients of a step's batch, added up, and their mean loss; zeros where the batch is empty."""
    engine = gradients.engine
    picked = [
        [work.examples[work.units[unit][row]] for row in steps.rows(unit, len(work.units[unit]), work.max_rows)]
        for unit in steps.batch(len(work.units))
    ]
    seed_torch(steps.coins(), engine.device)
    total, losses = np.zeros(gradients.size), 0.0
    for found, each in gradients.chunks(picked):
        for gradient in found.cpu():
            steps.add(total, gradient)
        losses += float(each.sum())
    return total, losses / max(1, len(picked))
