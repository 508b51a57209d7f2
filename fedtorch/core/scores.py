"""The means over clients of a score: one rule for the records, the reports and the choice of the best model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

COUNT = "count/"
"""Scores whose names begin so are sums from which a task makes figures that are no means; nobody draws them."""

LOSS = "loss"
"""The loss that an evaluation measures beside a task's metrics; the only score of which less is better."""

AGGREGATION_ERROR = "adapter/aggregation_error"
"""In the record of a round what averaging the factors of adapters one by one has lost."""


class Means(NamedTuple):
    """A score over several clients."""

    macro: float
    """mean of the clients' means"""
    micro: float
    """mean over all examples together"""
    examples: int
    """examples behind both"""


def means(pairs: Iterable[tuple[float, int]]) -> Means:
    """Mean of each score from (sum over examples, number of examples) of each client, added in their order.

    Clients without examples do not count. (nan, nan, 0) if there are none.
    """
    kept = [(total, n) for total, n in pairs if n > 0]
    if not kept:
        return Means(math.nan, math.nan, 0)
    count = sum(n for _, n in kept)
    return Means(sum(total / n for total, n in kept) / len(kept), sum(total for total, _ in kept) / count, count)
