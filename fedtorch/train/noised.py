"""Training whose every step goes along a noised sum of single units' gradients, and along nothing else of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedtorch.core.seeds import seed_torch
from fedtorch.core.silo_work import Numbers, SiloWork, Steps
from fedtorch.train.batches import StepPlan
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.loop import LossCurve
from fedtorch.train.unit_gradients import HasLoss, UnitGradients


def train_noised(
    engine: Engine,
    task: HasLoss,
    work: SiloWork,
    plans: Sequence[StepPlan],
    *,
    client: str,
    purpose: str,
    facts: Sequence[bytes | memoryview],
    start: Callable[[], None],
    parts: int = 1,
    before_step: GradientHook | None = None,
    after_step: Callable[[int], None] | None = None,
) -> LossCurve:
    """Take as many steps as there are plans; the losses are those of the batches, which no record may have.

    client: its name. start: loads weights and a fresh optimiser state. Called again where what came out must not leave,
    as other steps from the same first batch have. facts: all that `start` loads, and the settings. parts: into how many
    the units in memory are cut.
    """
    gradients = UnitGradients(engine, task, work.per_unit, max(1, work.physical // parts), client)
    while True:
        steps = work.begin(purpose, facts)
        start()
        losses, penalties = [], []
        for number, _ in enumerate(plans):
            total, loss = _sum(gradients, work, steps)
            along = torch.from_numpy(steps.release(total)).to(torch.float32)
            penalties.append(float(engine.step_along(along, before_step)))
            losses.append(loss)
            if after_step is not None:
                after_step(number + 1)
        if steps.may_leave():
            return LossCurve(tuple(losses), tuple(penalties), tuple(plan.epoch for plan in plans))


def noised_sum(
    engine: Engine,
    task: HasLoss,
    work: SiloWork,
    *,
    client: str,
    purpose: str,
    facts: Sequence[bytes | memoryview],
    start: Callable[[], None],
    parts: int = 1,
) -> tuple[torch.Tensor, LossCurve]:
    """This silo's part of a sum of gradients at the weights that `start` loads, with its share of the noise.

    Flat over the trained parameters, float64, on the CPU; nothing is stepped along it here. Arguments as above.
    """
    gradients = UnitGradients(engine, task, work.per_unit, max(1, work.physical // parts), client)
    while True:
        steps = work.begin(purpose, facts)
        start()
        total, loss = _sum(gradients, work, steps)
        part = torch.from_numpy(steps.release(total))
        if steps.may_leave():
            return part, LossCurve((loss,), (0.0,), (0,))


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
