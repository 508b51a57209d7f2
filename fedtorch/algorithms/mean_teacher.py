"""A teacher whose weights follow the student's (Tarvainen and Valpola 2017), and what both are compared on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Share
from fedtorch.train.engine import Engine


@dataclass(frozen=True)
class Student:
    """`algorithm.student`."""

    init: Literal["global", "initial", "persistent"] = "global"
    """decoder at the start of a round: the received one, that of w^0, or the client's own last one (kept by clients)"""


@dataclass(frozen=True)
class Teacher:
    """`algorithm.teacher`."""

    update: Literal["ema", "frozen", "copy"] | None = None
    """ema: theta' <- lam theta' + (1 - lam) theta; frozen: as received, for the whole round; copy: the student's
    weights; null: ema in the group fedparsing_ema, else frozen"""
    lam: Share = 0.99
    """lambda of the moving average"""
    every: Literal["epoch", "step"] = "epoch"
    """when the teacher is updated; with `step` lambda rises as min(1 - 1/(k + 1), lam) over the round's steps k"""
    scope: Literal["decoder", "full"] = "decoder"
    """what the teacher has of its own: the decoder (it reads the student's current encoder), or all weights"""
    mode: Literal["eval", "train"] = "eval"
    """train: the teacher has dropout too, drawn independently"""


@dataclass(frozen=True)
class Consistency:
    """`algorithm.consistency`."""

    type: Literal["mse_prob", "mse_logit", "hard"] = "mse_prob"
    """squared distance of probabilities or logits, or the task's loss with the teacher's answer as label"""
    reduce: Literal["sum_classes", "mean_classes"] = "sum_classes"
    """over a head's classes; always the mean over rows and the sum over heads"""

    def __post_init__(self) -> None:
        if self.type == "hard" and self.reduce != "sum_classes":
            raise ConfigError("consistency.reduce is mean_classes but consistency.type is hard, which does not use it")


@runtime_checkable
class Comparable(Protocol):
    """A task whose outputs a student and a teacher can be compared by."""

    def collate(self, examples: Sequence[Any], train: bool) -> Any: ...
    def outputs(self, model: nn.Module, batch: Any) -> Any: ...
    def consistency(self, student: Any, teacher: Any, batch: Any, *, kind: str, mean: bool) -> tuple[Tensor, int]: ...


class MeanTeacher:
    """The teacher of one client in one round. As a task its loss is the distance of the student from it.

    Under DeepSpeed it stays a set of whole fp32 tensors on every rank, beside the one engine.
    """

    whole_passes: ClassVar[bool] = True

    def __init__(
        self,
        task: Comparable,
        engine: Engine,
        received: Tensor,
        settings: Teacher,
        compare: Consistency,
        own: Sequence[str],
    ) -> None:
        self.task, self.engine, self.settings, self.compare = task, engine, settings, compare
        self.weights = engine.shared.copied(received, own, engine.device)
        """the teacher's own parameters, named tensors on the engine's device, copies; they lie as the student's do, so
        that equal weights give equal answers to the last bit"""
        self.updates = torch.zeros((), dtype=torch.int64)
        """how often it came nearer"""

    @property
    def held(self) -> dict[str, Tensor]:
        """Tensors that updates change, for `ClientJob.train`."""
        return {**self.weights, "updates": self.updates}

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """As the task does."""
        return self.task.collate(examples, train)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """FedParsing, eq. 1: (sum over rows, rows). The teacher comes first, without gradient."""
        with torch.no_grad(), self._mode(model):
            theirs = self._outputs(model, batch)
        ours = self.task.outputs(model, batch)
        mean = self.compare.reduce == "mean_classes"
        return self.task.consistency(ours, theirs, batch, kind=self.compare.type, mean=mean)

    @torch.no_grad()
    def update(self) -> None:
        """Bring the teacher nearer to the student, after an epoch or a step (eq. 2)."""
        if self.settings.update == "frozen":
            return
        self.updates += 1
        lam = self.settings.lam if self.settings.update == "ema" else 0.0
        if self.settings.every == "step":
            lam = min(1 - 1 / (int(self.updates) + 1), lam)
        current = self.engine.shared.view(self.engine.flat)
        for name, theirs in self.weights.items():
            theirs.lerp_(
                current[name].to(theirs.device), 1 - lam
            )  # leaves equal weights as they are; lam·x + (1 - lam)·x rounds

    def _outputs(self, model: nn.Module, batch: Any) -> Any:
        kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
        swapped = {f"module.{name}": tensor.to(kinds[name]) for name, tensor in self.weights.items()}
        return functional_call(_Call(model, self.task.outputs), swapped, (batch,))

    @contextmanager
    def _mode(self, module: nn.Module) -> Iterator[None]:
        if self.settings.mode == "eval":
            module.eval()
        yield
        module.train()


class _Call(nn.Module):
    """A function of a module as a module, so that `functional_call` can put other weights into it."""

    def __init__(self, module: nn.Module, function: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, batch: Any) -> Any:
        """The function's value."""
        return self.function(self.module, batch)


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that fit one of the shell patterns.

    Raises:
        ConfigError: none does.
    """
    found = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not found:
        raise ConfigError(
            f"algorithm.decoder is {', '.join(patterns)}, which matches none of the {len(names)} shared parameters, "
            f"such as {names[0] if names else '(none)'}; correct the pattern"
        )
    return found
