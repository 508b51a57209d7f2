"""A trainer of transformers over rounds: its optimiser, its place in a schedule, its generators are kept."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from fedtorch.core import devices
from fedtorch.core.client import ClientState
from fedtorch.core.seeds import seed_for
from fedtorch.core.shown import shortened
from fedtorch.core.state_keys import TRAINER, part_of
from fedtorch.train.job import ClientJob
from fedtorch.train.optim import load_state, state_of
from fedtorch.train.settings import ClientConfig

_STEPS, _MOMENTS, _SCHEDULE, _RANDOM = (f"{TRAINER}{name}" for name in ("steps", "moments/", "schedule/", "random/"))
_PURPOSE = "trainer"  # of seeds
_LIKE_PARAMETER = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}
"""What optimisers keep in the form of the parameter (Adafactor that of a vector alone)"""


class Kept:
    """One client's side of a trainer over rounds, read from its state at the start and written at the end of a round.

    `client.schedule_span: run`: every round is some steps of one training, which goes on as transformers resumes from a
    checkpoint, but with the received weights and without a file of tensors. Else `client.optimizer_state: keep` keeps
    the optimiser alone.
    """

    def __init__(self, job: ClientJob) -> None:
        self._job = job
        self._goes_on = job.hp.schedule_span == "run"
        self._keeps = job.hp.optimizer_state == "keep"
        self._taken = int(job.state.numbers.get(_STEPS, 0)) if self._goes_on else 0
        self._generators: dict[str, Tensor] = {}

    @property
    def seed(self) -> int:
        """The seed of this round; of all rounds where they are one training, whose order of rows it decides."""
        return (
            seed_for(self._job.run_seed, _PURPOSE, self._job.client.name) if self._goes_on else self._job.seed(_PURPOSE)
        )

    @property
    def schedule_steps(self) -> int | None:
        """Steps of one schedule; None: as many as the round's.

        A client that was drawn for more rounds than was expected goes on, on a schedule as long as its own steps.
        """
        if not self._goes_on:
            return None
        return max(self._job.steps_of_the_run(len(self._job.examples)), self._taken + (self._job.hp.steps or 0))

    @property
    def optimizer(self) -> tuple[dict[str, Tensor], dict[str, int | float]] | None:
        """The optimiser's state as `state_of` gave it; None: it begins anew."""
        return (
            (part_of(self._job.state.tensors, _MOMENTS), part_of(self._job.state.numbers, _MOMENTS))
            if self._keeps
            else None
        )

    @property
    def names(self) -> tuple[list[str], list[Any]]:
        """Names and parameters that the engine trains."""
        return self._job.engine.trained_names, self._job.engine.trained

    def ends_at(self, step: int) -> bool:
        """Is the round over after so many steps of the schedule?"""
        return self._goes_on and step >= self._taken + (self._job.hp.steps or 0)

    def resumed(self, folder: Path, args: Any) -> str | None:
        """The folder of a checkpoint to go on from; None: the training begins."""
        if not self._goes_on or not self._taken:
            return None
        begun = TrainerState(
            global_step=self._taken,
            max_steps=args.max_steps,
            logging_steps=args.logging_steps,
            train_batch_size=args.train_batch_size,
            stateful_callbacks={},
        )
        begun.save_to_json(str(folder / TRAINER_STATE_NAME))
        return str(folder)

    def note_generators(self) -> None:
        """Keep the generators as they are now: after the last step, before anything else draws."""
        self._generators = generators(self._job.engine.device)

    def put_back_generators(self) -> None:
        """As they were after the last step of the round before."""
        put_back_generators(part_of(self._job.state.tensors, _RANDOM), self._job.engine.device)

    def load_schedule(self, optimizer: Any, schedule: Any) -> None:
        """Go on where the schedule was, with the rates that its last step had set for the next one."""
        schedule.load_state_dict({**schedule.state_dict(), **self._schedule()})
        for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
            group["lr"] = rate

    def _schedule(self) -> dict[str, Any]:
        lists = {name: values.tolist() for name, values in part_of(self._job.state.tensors, _SCHEDULE).items()}
        return {**lists, **part_of(self._job.state.numbers, _SCHEDULE)}

    def keep(self, trainer: Any) -> None:
        """Write what the next round needs into the client's state."""
        tensors, numbers = self._job.state.tensors, self._job.state.numbers
        for kept in (tensors, numbers):
            for name in [name for name in kept if name.startswith(TRAINER)]:
                del kept[name]
        if self._keeps:
            optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
            moments, counts = state_of(optimizer, *self.names)
            tensors.update({_MOMENTS + name: value for name, value in moments.items()})
            numbers.update({_MOMENTS + name: value for name, value in counts.items()})
        if not self._goes_on:
            return
        numbers[_STEPS] = trainer.state.global_step
        for name, value in trainer.lr_scheduler.state_dict().items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[_SCHEDULE + name] = value
            elif isinstance(value, list) and value and all(isinstance(each, int | float) for each in value):
                tensors[_SCHEDULE + name] = torch.tensor(value, dtype=torch.float64)
        tensors.update({_RANDOM + name: value for name, value in self._generators.items()})


def continued(kind: type, kept: Kept) -> Any:
    """The trainer's class, which takes what is kept from the client's state in place of files."""

    class Continued(kind):
        def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            """Nothing: the received weights are in the module."""

        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            made = super().create_optimizer(*args, **kwargs)
            if kept.optimizer is not None:
                load_state(made, *kept.names, *kept.optimizer)
            return made

        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            if checkpoint is not None:
                kept.load_schedule(self.optimizer, self.lr_scheduler)

        def _load_rng_state(self, checkpoint: str | None) -> None:
            if checkpoint is not None:
                kept.put_back_generators()

    Continued.__name__, Continued.__qualname__ = kind.__name__, kind.__qualname__
    return Continued


def misfit(state: ClientState, shapes: Mapping[str, tuple[int, ...]], hp: ClientConfig) -> str:
    """Say what is wrong with what `Kept` has left in a state, as a clause; empty if nothing is.

    shapes: of the trained parameters, by name.
    """
    kept: dict[str, Any] = {**state.tensors, **state.numbers}
    for path, value in part_of(kept, _MOMENTS).items():
        name, _, key = path.rpartition("/")
        if name not in shapes:
            return f"has {shortened(path)}, which is of no parameter that is trained"
        if key in _LIKE_PARAMETER and (not isinstance(value, Tensor) or tuple(value.shape) != shapes[name]):
            return f"has no tensor of {shapes[name]} as {shortened(path)}"
    if hp.schedule_span != "run" or not state.numbers.get(_STEPS):
        return ""
    if _SCHEDULE + "last_epoch" not in state.numbers:
        return f"has no `{_SCHEDULE}last_epoch`, where the schedule goes on"
    coins = part_of(state.tensors, _RANDOM)
    for name, wanted in generators(devices.CPU).items():
        value = coins.get(name)
        if value is None or value.dtype != wanted.dtype or (name != "python_normal" and value.shape != wanted.shape):
            return f"has no state of a generator as `{_RANDOM}{name}`, with which the training goes on"
    return ""


def generators(device: torch.device) -> dict[str, Tensor]:
    """States of Python's, numpy's and torch's generators, as tensors of whole numbers."""
    _, words, normal = random.getstate()
    kind = np.random.get_state(legacy=False)
    found = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_normal": torch.tensor([] if normal is None else [normal], dtype=torch.float64),
        "numpy": torch.tensor(kind["state"]["key"].astype(np.int64)),
        "numpy_place": torch.tensor([kind["state"]["pos"], kind["has_gauss"]], dtype=torch.int64),
        "numpy_normal": torch.tensor([kind["gauss"]], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    of_device = devices.generator_state(device)
    return found if of_device is None else {**found, "device": of_device}


def put_back_generators(kept: Mapping[str, Tensor], device: torch.device) -> None:
    """Set them to what `generators` gave."""
    normal = kept["python_normal"].tolist()
    random.setstate((3, tuple(kept["python"].tolist()), normal[0] if normal else None))
    place, has_gauss = kept["numpy_place"].tolist()
    state = {"key": kept["numpy"].numpy().astype(np.uint32), "pos": place}
    gauss = kept["numpy_normal"].item()
    np.random.set_state({"bit_generator": "MT19937", "state": state, "has_gauss": has_gauss, "gauss": gauss})
    torch.set_rng_state(kept["torch"])
    if "device" in kept:
        devices.set_generator_state(kept["device"], device)
