"""A client's training that is saved while it is under way, and goes on where an earlier process was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtorch.core.state_keys import part_of
from fedtorch.train.batches import StepPlan
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.loop import LossCurve, Step, Taken, train
from fedtorch.train.moment import HELD, LOSSES, OPTIMIZER, PENALTIES, Moment, SavedTraining
from fedtorch.train.optim import misfit
from fedtorch.train.settings import ClientConfig
from fedtorch.train.whole_passes import LossFunction


@dataclass(frozen=True)
class SavedLoop:
    """The training loop of one training."""

    engine: Engine
    """what is trained"""
    loss_fn: LossFunction
    """of the task"""
    hp: ClientConfig
    """the client's settings in it"""
    held: Mapping[str, Tensor]
    """further tensors that steps change, in place"""
    planned: int
    """steps"""

    def train(
        self,
        plans: Sequence[StepPlan],
        steps: Callable[[Sequence[StepPlan]], Iterable[Step]],
        start: Callable[[Moment | None], None],
        saved: SavedTraining | None,
        *,
        before_step: GradientHook | None,
        after_step: Callable[[int], None],
    ) -> LossCurve:
        """Take the planned steps, or those that are left of them.

        steps: collates what was planned. start(moment): brings the engine there; None: to the beginning. saved: who
        saves it; None: nobody does.
        """
        taken, after = self.begun(plans, start, saved, after_step)
        left = steps(plans[len(taken.losses) :])
        return train(self.engine, left, self.loss_fn, before_step=before_step, after_step=after, taken=taken)

    def begun(
        self,
        plans: Sequence[StepPlan],
        start: Callable[[Moment | None], None],
        saved: SavedTraining | None,
        after_step: Callable[[int], None],
    ) -> tuple[Taken, Callable[[int], None]]:
        """Bring all to where the training begins, or goes on: the steps taken, and what to call after each further one.

        For the parameters see `train`.
        """
        taken = Taken()
        if saved is None:
            start(None)
            return taken, after_step
        self._go_on(saved.take(), start, taken, plans)
        return taken, _After(self, saved, taken, after_step)

    def moment(self, taken: Taken) -> Moment:
        """Where the training is. Waits for the device."""
        is_last = len(taken.losses) == self.planned
        found = self.engine.moment(with_optimizer=not is_last or self.hp.optimizer_state == "keep")
        found.tensors |= {HELD + name: tensor.detach().cpu() for name, tensor in self.held.items()}
        found.tensors[LOSSES] = torch.stack(taken.losses).cpu()
        found.tensors[PENALTIES] = torch.stack(taken.penalties).cpu()
        found.step = len(taken.losses)
        return found

    def fault(self, found: Moment) -> str:
        """Say what is wrong with a moment that was read from a file, as a clause; empty if nothing is."""
        if not 1 <= found.step <= self.planned:
            return f"is of step {found.step}, of {self.planned} that are planned"
        engine, entries = self.engine, {**part_of(found.tensors, OPTIMIZER), **part_of(found.numbers, OPTIMIZER)}
        wanted = engine.moment_form()
        wanted |= {HELD + name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.held.items()}
        for name in (LOSSES, PENALTIES):
            wanted[name] = (found.step,), found.tensors[name].dtype if name in found.tensors else torch.float32
        there = {name: (tuple(t.shape), t.dtype) for name, t in found.tensors.items() if not name.startswith(OPTIMIZER)}
        for name in sorted(wanted.keys() | there.keys()):
            if wanted.get(name) != there.get(name):
                return f"has {there.get(name, 'nothing')} as {name}, where {wanted.get(name, 'nothing')} belongs"
        return misfit(self.hp.optimizer, _shapes_of(engine), engine.shared.dtype, entries)

    @torch.no_grad()
    def _go_on(
        self, found: Moment | None, start: Callable[[Moment | None], None], taken: Taken, plans: Sequence[StepPlan]
    ) -> None:
        start(found)
        if found is None:
            return
        device = self.engine.device
        for name, tensor in self.held.items():
            tensor.copy_(found.tensors[HELD + name])
        taken.losses += found.tensors[LOSSES].to(device).unbind()
        taken.penalties += found.tensors[PENALTIES].to(device).unbind()
        taken.epochs += [plan.epoch for plan in plans[: found.step]]


@dataclass(frozen=True)
class _After:
    """Call after each step: the job's own, and a save where one is due or the process is to stop."""

    loop: SavedLoop
    """whose steps they are"""
    saved: SavedTraining
    """who saves it"""
    taken: Taken
    """the steps so far"""
    after_step: Callable[[int], None]
    """the job's own"""

    def __call__(self, step: int) -> None:
        try:
            self.after_step(step)
        except Exception as error:
            if self.saved.stops(error):
                self.saved.save(self.loop.moment(self.taken))
            raise
        if self.saved.is_due(step, self.loop.planned):
            self.saved.save(self.loop.moment(self.taken))


def _shapes_of(engine: Engine) -> dict[str, tuple[int, ...]]:
    """Shapes of the trained parameters by name; ZeRO's own hold a part of each."""
    layouts = (engine.shared, engine.private)
    return {name: tuple(shape) for layout in layouts for name, shape in zip(layout.names, layout.shapes, strict=True)}
