"""F1 and Matthews correlation from counts, which unlike the figures themselves can be added over clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Counts of one label, over any number of rows or spans."""

    hits: float = 0.0
    """predicted and true"""
    predicted: float = 0.0
    """how often it was predicted"""
    true: float = 0.0
    """how often it is the gold label"""

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.hits + other.hits, self.predicted + other.predicted, self.true + other.true)

    @property
    def f1(self) -> float:
        """2·hits / (predicted + true); 0 where the label neither occurs nor is predicted, as scikit-learn has it."""
        return 2 * self.hits / both if (both := self.predicted + self.true) else 0.0

    @property
    def precision(self) -> float:
        """hits / predicted; 0 where nothing is predicted."""
        return self.hits / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """hits / true; 0 where there is nothing to be found."""
        return self.hits / self.true if self.true else 0.0


def count_labels(true: Sequence[Iterable[int]], predicted: Sequence[Iterable[int]], size: int) -> list[Counts]:
    """Counts of labels 0 to size − 1, of rows that have any number of labels each."""
    table = [[0, 0, 0] for _ in range(size)]
    for gold, found in zip(true, predicted, strict=True):
        golds, founds = set(gold), set(found)
        for label in golds & founds:
            table[label][0] += 1
        for label in founds:
            table[label][1] += 1
        for label in golds:
            table[label][2] += 1
    return [Counts(*row) for row in table]


def f1_macro(counts: Mapping[str, Counts] | Sequence[Counts], *, every: bool = False) -> float:
    """Mean of the labels' F1, of those that occur or are predicted (scikit-learn's over the labels of its input).

    every: of all labels, 0 for those that do neither.
    """
    values = counts.values() if isinstance(counts, Mapping) else counts
    seen = [count.f1 for count in values if every or count.predicted or count.true]
    return sum(seen) / len(seen) if seen else 0.0


def f1_micro(counts: Mapping[str, Counts] | Sequence[Counts]) -> float:
    """F1 of all labels together; of rows with one label each it is the accuracy."""
    values = counts.values() if isinstance(counts, Mapping) else counts
    return sum(values, Counts()).f1


def matthews(counts: Sequence[Counts], rows: float) -> float:
    """Matthews correlation of rows with one label each, of any number of labels; 0 where it is undefined.

    (c·s − Σ p_k t_k) / √((s² − Σ p_k²)(s² − Σ t_k²)), Gorodkin 2004, with c hits, s rows, p_k predicted, t_k true.
    """
    hits = sum(count.hits for count in counts)
    product = sum(count.predicted * count.true for count in counts)
    spread = [rows**2 - sum(getattr(count, side) ** 2 for count in counts) for side in ("predicted", "true")]
    return (hits * rows - product) / math.sqrt(spread[0] * spread[1]) if all(spread) else 0.0
