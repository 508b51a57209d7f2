"""Metrics of `eval.metrics`: a figure that a task has anyway, a function, or sums that can be pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from fedtorch.metrics.correlation import moments, pearson


class Pooled(Protocol):
    """A metric that is no mean: its sums are added over clients, and the figure is made of them.

    `higher_is_better = False` in the class keeps `eval.select_by` from choosing by it.
    """

    def sums(self, predictions: Sequence[Any], references: Sequence[Any]) -> Sequence[float]:
        """Sums over one client's rows; as many numbers for every client, in a tensor or an array of one dimension."""
        ...

    def score(self, sums: Sequence[float]) -> float:
        """The figure of the rows behind the sums."""
        ...


def is_pooled(metric: Any) -> bool:
    """Does it have `sums`?"""
    return callable(getattr(metric, "sums", None))


def sums_of(metric: Pooled, predictions: Sequence[Any], references: Sequence[Any]) -> list[float]:
    """One client's sums as plain numbers.

    Raises:
        ValueError: one is not finite, or there is none.
    """
    found = [float(value) for value in metric.sums(predictions, references)]
    if not found or not all(map(math.isfinite, found)):
        raise ValueError("`sums` gave none, or one that is not finite")
    return found


def spearman(predictions: Sequence[float], references: Sequence[float]) -> float:
    """Correlation of ranks, equal values sharing the mean of theirs (scipy's); 0 where it is undefined.

    Ranks of several clients together would need their values, so this is a client's own figure.
    """
    return pearson(moments(_ranks(references), _ranks(predictions)))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + end - 1) / 2
        start = end
    return ranks
