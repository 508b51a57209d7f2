"""A step's micro-batches distributed over the ranks of a worker, and what each part of one counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core import devices
from fedtorch.train.batches import SplitBatch
from fedtorch.train.engine import LossFunction


def parts_of(batch: Any) -> tuple[Any, ...]:
    """A micro-batch's parts; itself if it is whole."""
    return batch.parts if isinstance(batch, SplitBatch) else (batch,)


def passes_of(
    micro_batches: Sequence[Any],
    rank: int,
    loss_fn: LossFunction,
    forward: Callable[[LossFunction, Any], Tensor],
    device: torch.device,
) -> list[tuple[Any, float]]:
    """Passes of a rank while every rank of its worker has one of the micro-batches: (part, what it counts).

    As many passes for every rank, for all have to take part in every exchange. A pass that only another rank needs
    counts 0, and so does all that a rank without a micro-batch computes.

    micro_batches: by rank, at most one each.
    forward: the engine's forward pass to a mean loss, taken by all ranks alike.
    """
    is_there = rank < len(micro_batches)
    parts = parts_of(micro_batches[rank if is_there else 0])
    number = max(len(parts_of(each)) for each in micro_batches)
    shares = _shares(parts, number, loss_fn, forward, device) if number > 1 else [1.0]
    return [(parts[place % len(parts)], share if is_there else 0.0) for place, share in enumerate(shares)]


def _shares(
    parts: Sequence[Any],
    number: int,
    loss_fn: LossFunction,
    forward: Callable[[LossFunction, Any], Tensor],
    device: torch.device,
) -> list[float]:
    """Share of each part in its micro-batch; 0 in further passes."""
    with torch.no_grad(), devices.same_numbers_again(device):
        counts = [forward(partial(_counted, loss_fn), parts[place % len(parts)]) for place in range(number)]
    whole = sum(float(count) for count in counts[: len(parts)])
    return [float(count) / whole if place < len(parts) else 0.0 for place, count in enumerate(counts)]


def _counted(loss_fn: LossFunction, module: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]:
    """Count of a loss, as a loss."""
    loss_sum, count = loss_fn(module, batch)
    return torch.zeros((), device=loss_sum.device) + count, 1
