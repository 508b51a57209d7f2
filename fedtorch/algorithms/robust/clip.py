"""Norm clipping: no update counts with a larger norm than a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtorch.algorithms.robust.base import Bucket, LinearRule, Matrix, WindowedUpdates, whole_weights
from fedtorch.core.ranges import Positive


@dataclass(frozen=True)
class Clip(LinearRule):
    """Σ w_i Δ_i min(1, max_norm / ‖Δ_i‖).

    Bounds what one client can do, whatever it sends; it finds nobody out. The norms are those that clients reported,
    which the server compares with what is added up; so no pass over the updates is needed.
    """

    max_norm: Positive | None = None
    """the limit; null: the median of the round's norms, by weight, which at least half of the weight is within"""

    def products(self, updates: WindowedUpdates, buckets: Sequence[Bucket]) -> Matrix:
        """Only the squares of norms are needed, and reports have those of clients that are alone."""
        if self.bucket > 1:
            return super().products(updates, buckets)
        return np.diag([updates.reports[bucket.places[0]].norm ** 2 for bucket in buckets])

    def weights(self, weights: Sequence[float], products: Matrix) -> list[float]:
        """A weight whose update is within the limit stays as it is, to the bit."""
        norms = np.sqrt(np.maximum(np.diag(products), 0.0)).tolist()
        limit = self.max_norm if self.max_norm is not None else upper_median(norms, weights)
        return [w if norm <= limit else w * (limit / norm) for w, norm in zip(weights, norms, strict=True)]


def upper_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The smallest value such that more than half of the weight is at most it, or the largest."""
    whole = whole_weights(weights).tolist()
    slack, reached = len(whole), 0
    for value, weight in sorted(zip(values, whole, strict=True)):
        reached += weight
        if 2 * reached > sum(whole) + slack:
            return value
    return max(values)
