"""Micro-batches in parts over the ranks of a worker: as many passes everywhere, shares that add up to one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedtorch.train.batches import SplitBatch
from fedtorch.train.micro_batches import passes_of

CPU = torch.device("cpu")


def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    return batch.sum() * float("nan"), len(batch)  # only the count is asked for


def forward(loss_fn: Any, batch: Tensor) -> Tensor:
    total, count = loss_fn(nn.Identity(), batch)
    return total / count


THREE, ONE, TWO = torch.ones(3), torch.ones(1), torch.ones(2)
SPLIT = SplitBatch((THREE, ONE))


@pytest.mark.parametrize(
    ("batches", "rank", "expected"),
    [
        ([TWO, THREE], 1, [(3, 1.0)]),
        ([TWO], 1, [(2, 0.0)]),  # nothing is left for this rank
        ([SPLIT, TWO], 0, [(3, 0.75), (1, 0.25)]),
        ([SPLIT, TWO], 1, [(2, 1.0), (2, 0.0)]),  # waits for the other rank's second part
        ([SPLIT], 1, [(3, 0.0), (1, 0.0)]),
    ],
)
def test_every_rank_takes_as_many_passes(batches: list[Any], rank: int, expected: list[tuple[int, float]]) -> None:
    passes = passes_of(batches, rank, loss, forward, CPU)
    assert [(len(part), share) for part, share in passes] == expected
