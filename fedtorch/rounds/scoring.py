"""Scores of a model on a client's examples, and the means over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedtorch.tasks.base import Scores, Task
from fedtorch.train.engine import Engine, to_device


@torch.inference_mode()
def evaluate(
    task: Task,
    engine: Engine,
    examples: Sequence[Any],
    batch_size: int,
    each: dict[str, tuple[float, ...]] | None = None,
) -> Scores:
    """Scores of the loaded weights on some examples: per metric (sum, count); `loss` per term of the loss.

    each: grows by the single examples' scores of `task.single_metrics()`, NaN where an example does not count.
    """
    engine.module.eval()
    with engine.autocast():
        predictions = task.predict(engine.module, examples, batch_size)
    scores = task.score(examples, predictions)
    if each is not None:
        single = set(task.single_metrics())
        for example, prediction in zip(examples, predictions, strict=True):
            for metric, (total, count) in task.score([example], [prediction]).items():
                if metric in single:
                    each[metric] = (*each.get(metric, ()), total / count if count else math.nan)
    if task.evaluates_loss:
        scores = {**scores, "loss": _loss(task, engine, examples, batch_size)}
    return scores  # the main metric first, as readers of the records expect


def _loss(task: Task, engine: Engine, examples: Sequence[Any], batch_size: int) -> tuple[float, int]:
    total, terms = 0.0, 0
    for start in range(0, len(examples), batch_size):
        batch = task.collate([examples[i] for i in range(start, min(start + batch_size, len(examples)))], False)
        with engine.autocast():
            loss, count = task.loss(engine.module, to_device(batch, engine.device))
        total, terms = total + float(loss), terms + int(count)
    return total, terms


def added(one: Scores, other: Scores) -> Scores:
    """Scores over the examples of both."""
    names = {**one, **other}
    return {n: tuple(map(sum, zip(one.get(n, (0.0, 0)), other.get(n, (0.0, 0)), strict=True))) for n in names}  # type: ignore[misc]


def averages(scores: Mapping[str, Scores], metric: str) -> tuple[float, float, int]:
    """(macro, micro, count) of a metric: mean over clients, and over all their examples together.

    Clients without examples do not count. (nan, nan, 0) if there are none.
    """
    pairs = [client[metric] for client in scores.values() if client.get(metric, (0.0, 0))[1] > 0]
    if not pairs:
        return math.nan, math.nan, 0
    count = sum(n for _, n in pairs)
    return sum(total / n for total, n in pairs) / len(pairs), sum(total for total, _ in pairs) / count, count
