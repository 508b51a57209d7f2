"""Pseudo labels: made with one model, mixed into a client's data, and measured apart from the annotated rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedtorch.algorithms.token_weights import TokenWeighting, token_weights
from fedtorch.core import histograms
from fedtorch.core.errors import ConfigError
from fedtorch.train.engine import Engine
from fedtorch.train.job import ClientJob


class Label(Protocol):
    """A model's answer: token ids, and the energy of each (NaN where the token was forced).

    One that has `energies_all`, the same over all logits, has their histogram in the records too.
    """

    @property
    def tokens(self) -> list[int]: ...
    @property
    def energies(self) -> list[float]: ...
    @property
    def is_empty(self) -> bool: ...


class LabellingTask(Protocol):
    """A task that labels texts beside `collate` and `loss`, such as `fewshot`."""

    def collate(self, examples: Sequence[Any], train: bool) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]: ...
    def row_losses(self, model: nn.Module, batch: Any) -> Tensor: ...
    def label(
        self,
        model: nn.Module,
        examples: Sequence[Any],
        *,
        batch_size: int,
        top_k: int,
        temperature: float,
        on_batch: Callable[[], None] | None,
    ) -> Sequence[Label]: ...
    def evaluate_labels(
        self,
        model: nn.Module,
        examples: Sequence[Any],
        labels: Sequence[Label],
        *,
        batch_size: int,
        top_k: int,
        temperature: float,
        on_batch: Callable[[], None] | None,
    ) -> Sequence[Label]: ...
    def relabelled(self, example: Any, tokens: list[int], weights: list[float] | None) -> Any: ...


def labelling_task(task: Any) -> LabellingTask:
    """The task, as one that can label.

    Raises:
        ConfigError: it cannot.
    """
    if not all(hasattr(task, name) for name in ("label", "evaluate_labels", "relabelled", "row_losses")):
        raise ConfigError(
            f"algorithm.name needs a task that can make pseudo labels, which {type(task).__name__} cannot; "
            "set task.name: fewshot, and paradigm: federated"
        )
    labelling: LabellingTask = task
    return labelling


@dataclass(frozen=True)
class Labelling:
    """How pseudo labels are made; see `FewFedWeight` for the fields."""

    token_weights: TokenWeighting
    """how energies make a token's weight; see `token_weights.py`"""
    top_k: int
    """logits per token that make its energy"""
    temperature: float
    """of the energy"""
    tau: float
    """of the weights' softmax; read for `token_weights: softmax` alone"""
    batch_size: int
    """inputs labelled at a time, `generation_batch`"""


@dataclass
class PseudoData:
    """A client's pseudo rows of a round."""

    rows: list[Any]
    """the client's examples with a model's answers"""
    numbers: dict[str, float]
    """for the report, see `make`"""


def make(job: ClientJob, labeller: Tensor, how: Labelling, *, energy_from: Tensor | None = None) -> PseudoData:
    """Labels all the client's training inputs with the weights `labeller` (flat, shared), greedily.

    energy_from: weights whose energies count in place of the labeller's. Uses the engine, whose weights it changes.
    numbers: generate_s (seconds), pseudo_tokens, clamped (tokens), empty (labels that ended at once), and histograms
    of the tokens' energies, over the `top_k` logits and over all (the paper's figure 3).
    """
    started = time.monotonic()
    labels = _labels(job, labeller, how, energy_from)
    weights, clamped = token_weights([label.energies for label in labels], how.token_weights, tau=how.tau)
    rows = [
        labelling_task(job.task).relabelled(example, label.tokens, weight)
        for example, label, weight in zip(job.examples, labels, weights, strict=True)
    ]
    numbers = {
        "generate_s": time.monotonic() - started,
        "pseudo_tokens": float(sum(len(label.tokens) for label in labels)),
        "clamped": float(clamped),
        "empty": float(sum(label.is_empty for label in labels)),
    }
    for name, field_name in (("energy_top", "energies"), ("energy_all", "energies_all")):
        numbers |= histograms.counts(name, (e for label in labels for e in getattr(label, field_name, ())))
    return PseudoData(rows, numbers)


def _labels(job: ClientJob, labeller: Tensor, how: Labelling, energy_from: Tensor | None) -> Sequence[Label]:
    """One for each of the client's examples."""
    task, examples = labelling_task(job.task), job.examples
    settings: dict[str, Any] = {
        "batch_size": how.batch_size,
        "top_k": how.top_k,
        "temperature": how.temperature,
        "on_batch": lambda: job.on_step(0),
    }
    with _loaded(job, labeller) as model:
        labels = task.label(model, examples, **settings)
    if energy_from is not None:
        with _loaded(job, energy_from) as model:
            labels = task.evaluate_labels(model, examples, labels, **settings)
    return labels


@contextmanager
def _loaded(job: ClientJob, weights: Tensor) -> Iterator[nn.Module]:
    """The engine's module with these weights, ready to predict."""
    job.engine.load(weights, job.private)
    with job.engine.autocast():
        yield job.engine.module.eval()


@dataclass
class Measured:
    """A task whose `loss` also adds up the losses of pseudo and annotated rows, each on their own, as they are trained.

    The sums stay on the device until `means`, which all ranks of a worker call.
    """

    task: LabellingTask
    """whose loss it is"""
    engine: Engine
    """whose passes say whether they count (`Engine.counts`), and whose worker's sums are added"""
    _sums: list[Tensor] = field(default_factory=list)
    """float64 on the device, of each pass: pseudo losses and rows, annotated losses and rows; shape (4,)"""

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """As the task's."""
        return self.task.collate(examples, train)

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """(sum over rows, rows), as the task's."""
        losses_B = self.task.row_losses(model, batch)
        self.add(losses_B, batch["is_pseudo"])
        return losses_B.sum(), len(losses_B)

    def add(self, losses_B: Tensor, is_pseudo_B: Tensor) -> None:
        """Count the losses of some rows, in passes that count."""
        if not self.engine.counts:
            return
        losses, chosen = losses_B.detach().double(), is_pseudo_B.double()
        sums = [(losses * chosen).sum(), chosen.sum(), (losses * (1 - chosen)).sum(), (1 - chosen).sum()]
        self._sums.append(torch.stack(sums))

    def means(self) -> dict[str, float]:
        """pseudo_loss, annotated_loss: means over the rows trained on, 0 where there were none; rows: how many."""
        own = torch.stack(self._sums).sum(0).tolist() if self._sums else [0.0] * 4
        pseudo, pseudo_rows, annotated, annotated_rows = self.engine.summed(own)
        return {
            "pseudo_loss": pseudo / max(1.0, pseudo_rows),
            "annotated_loss": annotated / max(1.0, annotated_rows),
            "rows": pseudo_rows + annotated_rows,
        }
