"""Numbers of a round's combination for its record: what a robust rule left out, what averaging of adapters loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedtorch.algorithms.adapters.error import figures
from fedtorch.algorithms.base import Updates
from fedtorch.algorithms.robust.base import kept_counts
from fedtorch.core.server import ServerState


def of_combination(server: ServerState, updates: Updates, weights: Sequence[float]) -> Mapping[str, float]:
    """How many updates a rule left out and shrank.

    Of adapters also what is lost by averaging A and B one by one, see `adapters.error`; takes every update once.
    """
    counts = kept_counts(updates.kept)
    if server.layout is None:
        return counts
    return counts | figures(server.layout, server.private, server.weights, updates, weights)
