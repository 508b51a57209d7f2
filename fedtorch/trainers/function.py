"""A function of the user's that trains a client, and what it is told."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError, UpdateError
from fedtorch.core.state_keys import TRAINER
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig, TrainerConfig
from fedtorch.trainers import module_state, process_state
from fedtorch.trainers.base import Trainer, own
from fedtorch.trainers.exited import exits_are_errors
from fedtorch.trainers.reference import start_model
from fedtorch.trainers.watched import watched

_PARAMETERS = ("model", "rows", "context")
_EXACT = 2**53  # up to it checkpoints hold every whole number


class State(MutableMapping[str, "Tensor | float | int"]):
    """The only memory that a function has over rounds: tensors and numbers of one client, by name."""

    def __init__(self, state: ClientState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Tensor | float | int:
        key = TRAINER + name
        return self._state.tensors[key].clone() if key in self._state.tensors else self._state.numbers[key]

    def __setitem__(self, name: str, value: Tensor | float | int) -> None:
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            raise UpdateError(f"context.state takes dense tensors, and `{name}` is {value.layout}; keep its to_dense()")
        if type(value) is int and abs(value) > _EXACT:
            raise UpdateError(f"context.state takes whole numbers up to 2**53, and `{name}` is larger; keep a tensor")
        if isinstance(value, Tensor):
            self._state.numbers.pop(TRAINER + name, None)
            self._state.tensors[TRAINER + name] = value.detach().cpu().clone()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._state.tensors.pop(TRAINER + name, None)
            self._state.numbers[TRAINER + name] = value
        else:
            raise UpdateError(f"context.state takes tensors and numbers, and `{name}` is a {type(value).__name__}")

    def __delitem__(self, name: str) -> None:
        self[name]
        self._state.tensors.pop(TRAINER + name, None)
        self._state.numbers.pop(TRAINER + name, None)

    def __iter__(self) -> Iterator[str]:
        names = {**self._state.tensors, **self._state.numbers}
        return iter(sorted(name.removeprefix(TRAINER) for name in names if name.startswith(TRAINER)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Context:
    """The third argument of a training function, beside model and rows."""

    client: str
    """whose rows they are"""
    round: int
    """of the run, from 0"""
    rounds: int
    """of the whole run"""
    steps: int | None
    """`client.steps`: how many are asked for; None: `epochs` says it"""
    epochs: int | None
    """`client.epochs`; None: `steps` says it"""
    seed: int
    """of this client and round; Python's, numpy's and torch's generators begin with it"""
    device: torch.device
    """where the model is"""
    args: Mapping[str, Any]
    """`client.trainer.args`"""
    state: State
    """what the client keeps from round to round"""
    task: Any
    """it has `collate(examples, train)` and `loss(model, batch)` for its examples"""
    on_step: Callable[[int], None]
    """on_step(n): to be called after each optimiser step with the number taken so far; it may end the training"""
    _job: ClientJob = field(repr=False)
    """for `start_model`"""

    @property
    def tokenizer(self) -> Any:
        """The task's tokenizer; not to be changed."""
        return own(self.task).vocabulary

    def start_model(self) -> nn.Module:
        """A copy of the model with the weights that the run began with, in eval mode."""
        return start_model(self._job)


class FunctionTrainer(Trainer):
    """`train(model, rows, context) -> {name: number}`, of the user's.

    It trains the model in place. The numbers go into the client's report; `loss` is the loss of all its steps.
    """

    @property
    def tells_losses(self) -> bool:
        """The user's code need not."""
        return False

    def __init__(self, settings: TrainerConfig, function: Any) -> None:
        super().__init__(settings)
        self._function = function

    @property
    def code(self) -> Any:
        """The function."""
        return self._function

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuse what cannot be called with (model, rows, context)."""
        self.refuse_kept_optimizer(hp)
        try:
            inspect.signature(self._function).bind(*_PARAMETERS)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"client.trainer.name is `{self.settings.name}`, which cannot be called as train(model, rows, "
                f"context): {error}"
            ) from None

    def run(self, job: ClientJob, weights: Tensor) -> LossCurve:
        """Call the function; steps are the calls of `on_step`, or else those of Trainers that it makes."""
        engine, seed, found = job.engine, job.seed("trainer"), None
        with module_state.lent(engine, weights, job.private) as module:
            with process_state.lent(engine.device, seed), watched(job.on_step) as seen:
                module.train()
                context = self._context(job, seed, lambda n: seen.tell())
                with exits_are_errors("the trainer"):
                    found = self._function(module, self.rows_of(job), context)
        return seen.curve(numbers_of(found, f"`{self.settings.name}`"))

    def _context(self, job: ClientJob, seed: int, on_step: Callable[[int], None]) -> Context:
        return Context(
            client=job.client.name,
            round=job.round,
            rounds=job.rounds,
            steps=job.hp.steps,
            epochs=job.hp.epochs,
            seed=seed,
            device=job.engine.device,
            args=self.settings.args,
            state=State(job.state),
            task=job.task,
            on_step=on_step,
            _job=job,
        )


def numbers_of(found: Any, what: str) -> dict[str, float]:
    """The numbers that a client's own code gave, by name; None: there are none.

    Raises:
        UpdateError: they are no mapping of names and numbers.
    """
    if not isinstance(found, Mapping | None):
        raise UpdateError(f"{what} returned a {type(found).__name__}, expected a mapping of names and numbers, or None")
    numbers = {}
    for name, value in (found or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 40:
            raise UpdateError(f"{what} named a number in a way that is no identifier of at most 40 letters")
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if not isinstance(number, int | float):
            raise UpdateError(f"{what} gave a {type(value).__name__} as `{name}`, expected a number")
        numbers[name] = float(number) if math.isfinite(number) else math.nan
    return numbers
