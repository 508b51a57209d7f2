"""What the server receives for a sum: single updates, or sums of a rank's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Incoming(NamedTuple):
    """What the server receives from another rank."""

    rank: int
    """Who sends it."""
    clients: tuple[str, ...]
    """Whose updates it is made of."""
    weight: float | None
    """Of the update; None: it is a sum of the clients' weighted updates already."""


def by_rank(remote: Sequence[Incoming]) -> list[Incoming]:
    """The sums that ranks send in place of these updates."""
    return [
        Incoming(rank, tuple(each.clients[0] for each in remote if each.rank == rank), None)
        for rank in distinct(remote)
    ]


def distinct(remote: Sequence[Incoming]) -> list[int]:
    """The ranks, each once, in order."""
    return list(dict.fromkeys(each.rank for each in remote))
