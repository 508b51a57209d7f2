"""The means over clients of a score: one rule for the records, the reports and the choice of the best model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

COUNT = "count/"
"""Scores whose names begin so are sums from which a task makes figures that are no means; nobody draws them."""

LOSS = "loss"
"""The loss that an evaluation measures beside a task's metrics; the only score of which less is better."""

RECEIVED = "received/"
"""Before the names of a received model's scores, where both it and the client's own are evaluated."""

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
    """Of (sum over examples, number of examples) of each client, added in their order.

    Clients without examples do not count. (nan, nan, 0) if there are none.
    """
    kept = [(total, n) for total, n in pairs if n > 0]
    if not kept:
        return Means(math.nan, math.nan, 0)
    count = sum(n for _, n in kept)
    return Means(sum(total / n for total, n in kept) / len(kept), sum(total for total, _ in kept) / count, count)


def told(scores: Mapping[str, tuple[float, int]], behind: Mapping[str, int]) -> dict[str, tuple[float, int]]:
    """A client's scores as they are recorded: (figure · examples, examples), with the examples that are `behind` each.

    A score that is a quotient of counts has their denominator as its number, so that sums over clients pool it, and
    `behind` says of how many examples it is; of 0 it has no figure.
    """
    found = dict(scores)
    for name, (total, count) in scores.items():
        examples = behind.get(name.removeprefix(RECEIVED))
        if examples is not None:
            found[name] = (total / count * examples if count else 0.0, examples)
    return found


def number_behind(
    metric: str, behind: Mapping[str, Mapping[str, int]], otherwise: int, shared: Collection[str] = ()
) -> int:
    """Examples of all clients behind a score. behind: client -> metric -> examples, see `told`.

    otherwise: the number where no client has the score there. shared: clients that have the same examples, which count
    once.
    """
    name = metric.removeprefix(RECEIVED)
    sizes = {client: own[name] for client, own in behind.items() if name in own}
    if not sizes:
        return otherwise
    together = [size for client, size in sizes.items() if client in shared]
    return sum(size for client, size in sizes.items() if client not in shared) + max(together, default=0)
