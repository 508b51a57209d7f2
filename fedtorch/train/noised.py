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
from fedtorch.train.loop import LossCurve, Taken
from fedtorch.train.moment import DEVICE_GENERATOR, GENERATOR, LOSSES, NOISED, Moment, SavedTraining
from fedtorch.train.saved_loop import SavedLoop
from fedtorch.train.settings import ClientConfig
from fedtorch.train.unit_gradients import HasLoss, UnitGradients

T = TypeVar("T")


def nothing(step: int) -> None:
    """After a step, where nobody asks for anything."""


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
    start: Callable[[Moment | None], None]
    """loads weights and the optimiser's state, of the beginning or of a moment"""
    hp: ClientConfig
    """the client's settings in it"""
    parts: int = 1
    """into how many the units in memory are cut"""

    def until_it_may_leave(self, attempt: Callable[[UnitGradients, Steps], T]) -> T:
        """Result of the attempt that may leave: one is begun again where others left from the same first batch."""
        physical = max(1, self.work.physical // self.parts)
        gradients = UnitGradients(self.engine, self.task, self.work.per_unit, physical, self.client)
        while True:
            steps = self.work.begin(self.purpose, self.facts)
            found = attempt(gradients, steps)
            if steps.may_leave():
                return found


def train_noised(
    training: NoisedTraining,
    plans: Sequence[StepPlan],
    *,
    before_step: GradientHook | None = None,
    after_step: Callable[[int], None] = nothing,
    saves: Callable[[Callable[[Moment], str]], SavedTraining] | None = None,
) -> LossCurve:
    """Take as many steps as there are plans; the losses are those of the batches, which no record may have.

    saves: makes who saves it, of what says what is wrong with a moment; None: nobody does. A save is of one attempt.
    """
    made: list[SavedTraining] = []

    def take_steps(gradients: UnitGradients, steps: Steps) -> LossCurve:
        engine, work = training.engine, training.work
        loop = NoisedLoop(engine, training.task.loss, training.hp, {}, len(plans), steps)
        if saves is not None and not made:
            made.append(saves(loop.fault))

        def start(found: Moment | None) -> None:
            training.start(found)
            if found is not None:
                steps.go_on(_bytes(found.tensors[NOISED]), found.step)

        taken, after = loop.begun(plans, start, made[0] if made else None, after_step)
        for plan in plans[len(taken.losses) :]:
            total, loss = _sum(gradients, work, steps)
            along = torch.from_numpy(steps.release(total)).to(torch.float32)
            taken.penalties.append(engine.step_along(along, before_step))
            taken.losses.append(torch.tensor(loss, dtype=torch.float64))
            taken.epochs.append(plan.epoch)
            after(len(taken.losses))
        losses, penalties = ([float(value) for value in values] for values in (taken.losses, taken.penalties))
        return LossCurve(tuple(losses), tuple(penalties), tuple(taken.epochs))

    return training.until_it_may_leave(take_steps)


@dataclass(frozen=True)
class NoisedLoop(SavedLoop):
    """One attempt at noised steps; a moment of it has nothing of the rows that did not go through the noise.

    Losses are 0 in it, and generators as after the seed 0: the next step seeds them anew.
    """

    steps: Steps
    """the attempt"""

    def moment(self, taken: Taken) -> Moment:
        """Where the attempt is."""
        found = super().moment(taken)
        found.tensors[LOSSES] = torch.zeros_like(found.tensors[LOSSES])
        for name, device in ((GENERATOR, torch.device("cpu")), (DEVICE_GENERATOR, self.engine.device)):
            if name in found.tensors:
                found.tensors[name] = torch.Generator(device).manual_seed(0).get_state()
        found.tensors[NOISED] = torch.tensor(list(self.steps.written()), dtype=torch.uint8)
        return found

    def fault(self, found: Moment) -> str:
        """Say what is wrong with a moment that was read from a file, as a clause; empty if nothing is."""
        rest = {name: tensor for name, tensor in found.tensors.items() if name != NOISED}
        if problem := super().fault(Moment(rest, found.numbers, found.step)):
            return problem
        if NOISED not in found.tensors or not self.steps.is_of(_bytes(found.tensors[NOISED])):
            return "is of another attempt, whose batches and noise were others"
        return ""


def noised_sum(training: NoisedTraining) -> tuple[torch.Tensor, LossCurve]:
    """This silo's part of a sum of gradients at the weights that the training starts from, with its share of the noise.

    Flat over the trained parameters, float64, on the CPU; nothing is stepped along it here.
    """

    def take_sum(gradients: UnitGradients, steps: Steps) -> tuple[torch.Tensor, LossCurve]:
        training.start(None)
        total, loss = _sum(gradients, training.work, steps)
        return torch.from_numpy(steps.release(total)), LossCurve((loss,), (0.0,), (0,))

    return training.until_it_may_leave(take_sum)


def _bytes(written: torch.Tensor) -> bytes:
    return bytes(written.tolist()) if written.dtype == torch.uint8 and written.dim() == 1 else b""


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
