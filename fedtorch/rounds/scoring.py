"""Scores of a model on a client's examples, and the means over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedtorch.config.schema import EvalConfig
from fedtorch.core.scores import LOSS, means_of, once
from fedtorch.tasks.base import Scores, Task
from fedtorch.train.engine import Engine


def chooses_by(settings: EvalConfig, task: Task) -> str:
    """The score that chooses the best model: `eval.select_by`, or the task's own choice."""
    return settings.select_by or task.chooses_by()


@torch.inference_mode()
def evaluate(
    task: Task,
    engine: Engine,
    examples: Sequence[Any],
    batch_size: int,
    each: dict[str, tuple[float, ...]] | None = None,
    kept: list[tuple[Any, Any]] | None = None,
    with_loss: bool = False,
) -> Scores:
    """Scores of the loaded weights on some examples: per metric (sum, count); `loss` per term of the loss.

    with_loss: also of a task that does not measure it by itself.

    each: grows by the single examples' scores of `task.single_metrics()`, NaN where an example does not count. kept:
    grows by the examples, each with its prediction.
    """
    engine.module.eval()
    with engine.autocast():
        predictions = task.predict(engine.module, examples, batch_size)
    scores = task.score(examples, predictions)
    if kept is not None:
        kept += zip(examples, predictions, strict=True)
    if each is not None:
        single = set(task.single_metrics())
        for example, prediction in zip(examples, predictions, strict=True):
            for metric, (total, count) in task.score([example], [prediction]).items():
                if metric in single:
                    each[metric] = (*each.get(metric, ()), total / count if count else math.nan)
    if with_loss or task.evaluates_loss:
        scores = {**scores, LOSS: _loss(task, engine, task.loss_examples(examples), batch_size)}
    return scores  # the main metric first, as readers of the records expect


def _loss(task: Task, engine: Engine, examples: Sequence[Any], batch_size: int) -> tuple[float, int]:
    total, terms = 0.0, 0
    for start in range(0, len(examples), batch_size):
        batch = task.collate([examples[i] for i in range(start, min(start + batch_size, len(examples)))], False)
        with engine.autocast():
            loss, count = task.loss(engine.module, engine.upload(batch))
        total, terms = total + float(loss), terms + int(count)
    return total, terms


def added(one: Scores, other: Scores) -> Scores:
    """Scores over the examples of both."""
    names = {**one, **other}
    return {n: tuple(map(sum, zip(one.get(n, (0.0, 0)), other.get(n, (0.0, 0)), strict=True))) for n in names}  # type: ignore[misc]


def averages(task: Task, scores: Mapping[str, Scores], metric: str, split: str) -> tuple[float, float, int]:
    """(macro, micro, count) of a metric, see `means_of`; micro is the pooled figure of one that is no mean.

    split: that was scored; rows of it that clients share count once.
    """
    macro, micro, count = means_of(scores, metric, task.sharing(split))
    return macro, pooled_scores(task, scores, split).get(metric, micro), count


def pooled_scores(task: Task, scores: Mapping[str, Scores], split: str) -> Mapping[str, float]:
    """`Task.pooled_scores` with rows that clients share once."""
    return task.pooled_scores(_once(task, scores, split))


def summary(task: Task, scores: Mapping[str, Scores], split: str) -> dict[str, Any]:
    """`Task.summary` in which rows that clients share count once in all figures but those of single clients."""
    found, each = task.summary(_once(task, scores, split)), dict[str, Any]()
    if task.sharing(split):
        each = {key: value for key, value in task.summary(scores).items() if key == "clients"}
    return {**found, **each}


def _once(task: Task, scores: Mapping[str, Scores], split: str) -> Mapping[str, Any]:
    shared = task.sharing(split)
    return once(scores, shared) if shared else scores
