"""Fixed factors of Fed-SB from rows that are nobody's secret: the gradient of their loss at the run's start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedtorch.core.errors import DataError
from fedtorch.data.own.keys import OwnData
from fedtorch.data.own.rows import Form
from fedtorch.models.adapters.lora import lora_layers
from fedtorch.models.adapters.settings import KEY
from fedtorch.models.adapters.square import fit_square, weight_gradients
from fedtorch.tasks.new_rows import all_usable, new_rows

SIZE = 8
"""Rows that are computed together."""


class HasRows(Protocol):
    """A task over data of one's own, as far as public rows need it; `OwnTask` has these members."""

    @property
    def data(self) -> OwnData:
        """Meaning of the columns of a source."""

    def form(self) -> Form:
        """Columns that a row must have."""

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Any]:
        """Converted rows as they are collated."""

    @property
    def refers_to(self) -> str:
        """The model that its loss compares with; empty: none."""

    def reference_of(self, model: nn.Module, examples: Sequence[Any]) -> Tensor:
        """Numbers of each example by a model."""

    def with_reference(self, examples: Sequence[Any], found: Tensor) -> Sequence[Any]:
        """Examples with it."""

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """A batch of CPU tensors."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]:
        """(sum of the losses, number of terms) of a batch."""


def fit_to_public_rows(task: HasRows, model: nn.Module, source: str) -> None:
    """Take A and B from the rows in `source`, in their order; without dropout, so a function of rows, base and seed.

    The loss is the task's, summed over all rows. The same bits on machines of one kind; elsewhere the digest of what
    is not trained differs, and the ranks do not start.

    Raises:
        ConfigError: the source or a column is not there, or its gradient is of no use. DataError: a row is unusable.
    """
    layers, count = lora_layers(model), 0
    was_training = model.training
    model.eval()
    with weight_gradients(layers) as gradients:
        for rows in new_rows(source, task.data, task.form()):
            examples: list[Any] = task.examples(all_usable(rows), f"{KEY}.public_rows")
            count += len(examples)
            for start in range(0, len(examples), SIZE):
                loss, _ = task.loss(model, task.collate(_referred(task, model, examples[start : start + SIZE]), False))
                loss.float().backward()
    model.zero_grad()
    model.train(was_training)
    if not count:
        raise DataError(f"{KEY}.public_rows is {source!r}, which has no rows")
    fit_square(layers, gradients)


@torch.no_grad()
def _referred(task: HasRows, model: nn.Module, examples: Sequence[Any]) -> Sequence[Any]:
    """Examples that are compared with the model itself, which is that of the start."""
    return task.with_reference(examples, task.reference_of(model, examples)) if task.refers_to else examples
