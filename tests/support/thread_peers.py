"""Ranks of a sparse sum as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedtorch.comm.sums.aggregation import Term
from fedtorch.comm.transport.meter import Meter
from fedtorch.core.update import Report


class ThreadPeers:
    """One of several; see `fedtorch.comm.sparse.peers.Peers`."""

    def __init__(self, place: int, members: tuple[int, ...], table: Table, messages: dict[int, list[Tensor]]) -> None:
        self.rank, self.members, self.meter = members[place], members, Meter()
        self._place, self._table, self._messages = place, table, messages
        self.moved = 0
        """bytes that came from others"""

    def enter(self, accepted: Sequence[Report], weights: Sequence[float]) -> tuple[list[Term], list[Tensor]]:
        shared = self._table.all_gather(self._place, list(weights))[0]
        ranks = [rank for rank, own in self._messages.items() for _ in own]
        terms = [Term(place, rank, weight) for place, (rank, weight) in enumerate(zip(ranks, shared, strict=True))]
        return terms, self._messages.get(self.rank, [])

    def all_to_all(self, parts: Sequence[Tensor], limit_bytes: int) -> list[Tensor]:
        assert max(map(len, parts)) <= limit_bytes
        rows = self._table.all_gather(self._place, [part.clone() for part in parts])
        return self._counted([row[self._place] for row in rows])

    def all_gather(self, mine: Tensor, limit_bytes: int) -> list[Tensor]:
        assert len(mine) <= limit_bytes
        return self._counted(self._table.all_gather(self._place, mine.clone()))

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        return self._table.all_gather(self._place, list(numbers))

    def add(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.sum(self._table.all_gather(self._place, numbers), axis=0)

    def _counted(self, came: list[Tensor]) -> list[Tensor]:
        self.moved += sum(len(part) for place, part in enumerate(came) if place != self._place)
        return came


class Table:
    """Where threads meet and leave things for each other."""

    def __init__(self, count: int) -> None:
        self._barrier, self._left = threading.Barrier(count, timeout=20), [None] * count

    def all_gather(self, place: int, thing: Any) -> list[Any]:
        self._left[place] = thing
        self._barrier.wait()
        found = list(self._left)
        self._barrier.wait()
        return found


def run_threads(members: tuple[int, ...], messages: dict[int, list[Tensor]], work: Callable[[Any], Any]) -> list[Any]:
    """What `work` returns of each member's peers. messages: of each rank's clients, in the order of the reports."""
    table = Table(len(members))
    peers = [ThreadPeers(place, members, table, messages) for place in range(len(members))]
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(work, peers))
