"""Losses of forward passes alone, for who takes steps without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedtorch.train.batches import SplitBatch
from fedtorch.train.engine import Engine
from fedtorch.train.whole_passes import LossFunction


@torch.no_grad()
def mean_loss(engine: Engine, loss_fn: LossFunction, batches: Sequence[Any], divisor: int) -> float:
    """Σ over micro-batches of (loss sum / count), divided by `divisor`, with the module as it is; in float64.

    Each loss is fp32 at least. Waits for the device. No dropout where the module is in evaluation mode.
    """
    total = 0.0
    for batch in batches:
        parts = batch.parts if isinstance(batch, SplitBatch) else (batch,)
        loss, terms = 0.0, 0.0
        for part in parts:
            with engine.autocast():
                loss_sum, count = loss_fn(engine.module, engine.upload(part))
            loss, terms = loss + float(loss_sum), terms + float(count)
        total += loss / terms if terms else float("nan")
    return total / divisor
