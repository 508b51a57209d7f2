"""The means over clients of a score: one rule for the records, the reports and the choice of the best model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

COUNT = "count/"
"""Scores whose names begin so are sums from which a task makes figures that are no means; nobody draws them."""

LOSS = "loss"
"""The loss that an evaluation measures beside a task's metrics; the only score of which less is better."""

RECEIVED = "received/"
"""Before the names of a received model's scores, where both it and the client's own are evaluated."""

AGGREGATION_ERROR = "adapter/aggregation_error"
"""In the record of a round what averaging the factors of adapters one by one has lost."""

SHARED = ""
"""In place of the names of clients that have the same examples; no client is called so."""

Pair = tuple[float, float]
"""(sum over examples, number of examples)"""


class Means(NamedTuple):
    """A score over several clients."""

    macro: float
    """mean of the clients' means"""
    micro: float
    """mean over all examples together"""
    examples: int
    """examples behind both"""


def means(pairs: Iterable[Pair], together: Iterable[Pair] | None = None) -> Means:
    """Means of (sum over examples, number of examples) of each client, added in their order.

    together: the same for the mean over all examples, where clients have examples in common: see `once`. Clients
    without examples do not count. (nan, nan, 0) if there are none.
    """
    kept = [(total, n) for total, n in pairs if n > 0]
    if not kept:
        return Means(math.nan, math.nan, 0)
    every = kept if together is None else list(together)
    count = sum(n for _, n in every)
    macro = sum(total / n for total, n in kept) / len(kept)
    return Means(macro, sum(total for total, _ in every) / count, round(count))


def means_of(scores: Mapping[str, Mapping[str, Pair]], name: str, shared: Collection[str] = ()) -> Means:
    """Means of one score by client. shared: clients that have the same examples, which count once."""
    pairs = {client: {name: metrics[name]} for client, metrics in scores.items() if name in metrics}
    together = [metrics[name] for metrics in once(pairs, shared).values()] if shared else None
    return means((metrics[name] for metrics in pairs.values()), together)


def once(scores: Mapping[str, Mapping[str, Pair]], shared: Collection[str]) -> dict[str, dict[str, Pair]]:
    """Scores by client with one entry, by the name `SHARED`, in place of those of all clients that are `shared`.

    These have the same examples: its sums and counts are the means of theirs, 0 where one has none. So all sums over
    what is returned have such examples once, and where all clients have one model they are that model's.
    """
    found = {client: dict(metrics) for client, metrics in scores.items() if client not in shared}
    together = [metrics for client, metrics in scores.items() if client in shared]
    names = dict.fromkeys(name for metrics in together for name in metrics)
    merged = {name: _mean([metrics.get(name, (0.0, 0)) for metrics in together]) for name in names}
    return {**found, **({SHARED: merged} if together else {})}


def are_shared_by_all(clients: Collection[str], shared: Collection[str]) -> bool:
    """Have all clients that were scored the same examples? shared: those that have; False without clients."""
    return bool(clients) and set(clients) <= set(shared)


def sharers(clients: Collection[str], shared: Collection[str]) -> str:
    """Say which of some clients have the same examples: `all clients`, or how many."""
    return "all clients" if are_shared_by_all(clients, shared) else f"{len(shared)} clients"


def _mean(pairs: Sequence[Pair]) -> Pair:
    total, count = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return total, int(count) if count == int(count) else count


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
