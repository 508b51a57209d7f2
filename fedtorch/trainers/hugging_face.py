"""transformers' `Trainer`, and what all trainers that derive from it have in common."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer as OfTransformers
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from fedtorch.core import devices
from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig
from fedtorch.trainers import arguments, module_state, process_state
from fedtorch.trainers.base import Trainer
from fedtorch.trainers.over_rounds import Kept, continued, misfit

_NOT_MEASURED = {
    "loss",
    "grad_norm",
    "learning_rate",
    "epoch",
    "step",
    "total_flos",
    "num_tokens",
    "num_input_tokens_seen",
}
"""In a line of the log, what is no measure of the training: the loss, which has a place of its own, and counts."""


@dataclass(frozen=True)
class Round:
    """The parts of a trainer in one round of one client."""

    job: ClientJob
    """whose"""
    rows: Any
    """the client's training rows, as the trainer gets them"""
    args: Any
    """arguments of the trainer, of its own class"""
    callback: _Callback
    """it beats the heart and ends the round"""
    weights: Tensor
    """the received shared weights, flat"""


class HuggingFace(Trainer):
    """A trainer that derives from transformers' own: one new object per client and round."""

    arguments_class: type = TrainingArguments
    """of its arguments"""
    defaults: Mapping[str, Any] = {}
    """arguments that differ from the library's own, where the user gives none"""

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuse arguments that are not there, not the user's to set, or worth nothing."""
        name, given = self.settings.name, self.settings.args
        arguments.check_names(name, given, self.arguments_class)
        with process_state.lent(devices.CPU, 0) as folder:
            arguments.check_values(name, self.arguments_class, given, hp=hp, defaults=self.defaults, folder=folder)
        if hp.schedule_span == "run" and (hp.steps is None or hp.optimizer_state != "keep"):
            raise ConfigError(
                "client.schedule_span is run beside client.trainer, which then goes on as if it had never stopped; set "
                "client.steps and client.optimizer_state: keep, or client.schedule_span to round"
            )

    @property
    def tells_losses(self) -> bool:
        """Are all steps logged?"""
        return self.settings.args.get("logging_steps", 1) == 1 and "logging_strategy" not in self.settings.args

    def misfit(self, state: ClientState, shapes: Mapping[str, tuple[int, ...]], hp: ClientConfig) -> str:
        """Say what is wrong with the optimiser that was kept, or with the place in a schedule."""
        return misfit(state, shapes, hp)

    def run(self, job: ClientJob, weights: Tensor) -> LossCurve:
        """Train as the library does, on this rank's device; its log gives the losses."""
        engine, kept = job.engine, Kept(job)
        callback = _Callback(job, kept)
        with module_state.lent(engine, weights, job.private), process_state.lent(engine.device, kept.seed) as folder:
            args = arguments.made(
                self.arguments_class,
                self.settings.args,
                hp=job.hp,
                device=engine.device,
                folder=folder,
                seed=kept.seed,
                steps=kept.schedule_steps,
                defaults=self.defaults,
                precision=engine.precision,
            )
            trainer = self.make(Round(job, self.rows_of(job), args, callback, weights))
            trainer.remove_callback(PrinterCallback)
            trainer.train(resume_from_checkpoint=kept.resumed(folder, args))
            kept.keep(trainer)
            log = list(trainer.state.log_history)
        return curve_of(log, callback.taken)

    def make(self, round: Round) -> Any:
        """The library's trainer, ready to train."""
        raise NotImplementedError


class Transformers(HuggingFace):
    """`transformers.Trainer` on the task's examples.

    The loss is the model's own where the task's batches are what the model takes, with `labels`, as in a script without
    this package; and the task's, a mean over a micro-batch's terms, where they are not.
    """

    def make(self, round: Round) -> Any:
        """A Trainer whose batches the task collates."""
        task, module = round.job.task, round.job.engine.module
        batch = task.collate(round.rows[:1], True)
        is_plain = isinstance(batch, Mapping) and "labels" in batch and set(batch) <= _taken_by(module)
        return continued(OfTransformers if is_plain else _with_loss_of(task), round.callback.kept)(
            model=module,
            args=round.args,
            train_dataset=_Rows(round.rows),
            data_collator=partial(task.collate, train=True) if is_plain else partial(_nested, task),
            callbacks=[round.callback],
        )


_BATCH = "batch"  # the one name in a batch that only the task understands


def _nested(task: Any, examples: Sequence[Any]) -> dict[str, Any]:
    return {_BATCH: task.collate(examples, True)}


def _taken_by(module: nn.Module) -> set[str]:
    return set(inspect.signature(type(module).forward).parameters)


def _with_loss_of(task: Any) -> type:
    """A Trainer that takes the task's loss of the task's batches."""

    class OnTask(OfTransformers):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.model_accepts_loss_kwargs = False  # a step is the mean of its micro-batches' means

        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            total, count = task.loss(model, inputs[_BATCH])
            return total / count

    return OnTask


class _Rows(torch.utils.data.Dataset):
    def __init__(self, examples: Sequence[Any]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, place: int) -> Any:
        return self._examples[place]


class _Callback(TrainerCallback):
    """Tells the run of every step, and ends the round where a schedule goes on."""

    def __init__(self, job: ClientJob, kept: Kept) -> None:
        self._job, self.kept = job, kept
        self.taken = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.taken += 1
        self._job.on_step(self.taken)
        if self.kept.ends_at(state.global_step):
            control.should_training_stop = True
            self.kept.note_generators()


def curve_of(log: Sequence[Mapping[str, Any]], taken: int) -> LossCurve:
    """Losses by step, and the round's means of what else the library measured, from its log."""
    lines = [line for line in log if "loss" in line]
    losses = [float(line["loss"]) for line in lines][-taken:] if taken else []
    measured: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if name not in _NOT_MEASURED and isinstance(value, int | float):
                measured.setdefault(name.replace("/", "_"), []).append(float(value))
    told = {f"trainer_{name}": sum(values) / len(values) for name, values in measured.items()}
    epochs = tuple(int(line.get("epoch", 0)) for line in lines)[-taken:] if taken else ()
    if len(losses) < taken:  # not every step was logged
        return LossCurve(untold=taken, told=told)
    return LossCurve(tuple(losses), (0.0,) * len(losses), epochs, told=told)
