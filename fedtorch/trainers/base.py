"""A trainer: it trains a client in place of the package's own loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig, TrainerConfig
from fedtorch.trainers.check import Repeated


def own(task: Any) -> Any:
    """The task as the config names it, also where all clients' rows are one client's (`paradigm: centralized`)."""
    return getattr(task, "parts", task)


class Trainer:
    """Trains the module of an engine in place; the engine has loaded the weights, and takes the difference afterwards.

    What is left behind is put back, whoever trains: in the module by `module_state.lent`, in the
    process by `process_state.lent`.
    """

    rows = "examples"
    """what it is given where the config does not say: `examples` of the task, or `raw` rows"""

    def __init__(self, settings: TrainerConfig) -> None:
        self.settings = settings
        self._repeated = Repeated() if settings.check else None

    @property
    def tells_losses(self) -> bool:
        """Is the loss of every step known, so that clients can be weighed by it?"""
        return True

    @property
    def code(self) -> Any:
        """The function from outside this package whose file all ranks must have alike; None: there is none."""
        return None

    @property
    def wants_raw(self) -> bool:
        """Does it get rows as they stand in the source?"""
        return (self.settings.rows or self.rows) == "raw"

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuse settings that cannot work, before the ranks meet.

        Raises:
            ConfigError: it names the key.
        """

    def refuse_kept_optimizer(self, hp: ClientConfig) -> None:
        """Refuse `optimizer_state` and `schedule_span` where the optimiser is made by a client's own code.

        Raises:
            ConfigError: one is set.
        """
        for key, plain in (("optimizer_state", "reset"), ("schedule_span", "round")):
            if (value := getattr(hp, key)) != plain:
                raise ConfigError(
                    f"client.{key} is {value} but client.trainer is {self.settings.name}, which makes its optimiser by "
                    f"itself; remove client.{key}"
                )

    def check_module(self, module: nn.Module) -> None:
        """Refuse a model that the trainer cannot train.

        Raises:
            ConfigError: it says why.
        """

    def misfit(self, state: ClientState, shapes: Mapping[str, tuple[int, ...]], hp: ClientConfig) -> str:
        """Say what is wrong with a client's state from a checkpoint, as a clause; empty if nothing is.

        shapes: of the trained parameters, by name.
        """
        return ""

    def train(self, job: ClientJob, weights: Tensor) -> LossCurve:
        """Train from `weights` (flat, shared) and the client's private ones; the engine has the result.

        Raises:
            UpdateError: something else than trained weights was left in the model.
            FedtorchError: with `check`, a training came to something else when it was done again.
        """
        return self.run(job, weights) if self._repeated is None else self._repeated.train(self.run, job, weights)

    def run(self, job: ClientJob, weights: Tensor) -> LossCurve:
        """Do one training for `train`."""
        raise NotImplementedError

    def rows_of(self, job: ClientJob) -> Any:
        """The client's training rows, in the form that the trainer gets."""
        return job.task.raw_rows(job.client.name, "train") if self.wants_raw else job.examples  # type: ignore[attr-defined]
