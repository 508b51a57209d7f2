"""Vectors that the server receives for a sum, window by window: in an aggregation, or while others train (`early`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtorch.comm.sums.aggregation import IN_FLIGHT, Aggregation
from fedtorch.comm.sums.checks import SumCheck
from fedtorch.comm.transport.process_group import Transfer
from fedtorch.comm.transport.window_memory import start_take


class Incoming(NamedTuple):
    """A vector that the server receives from another rank for a sum: one update, or a sum of the rank's."""

    rank: int
    """Who sends it."""
    clients: tuple[str, ...]
    """Whose updates it is made of."""
    weight: float | None
    """Weight of the update; None: it is a sum of the clients' weighted updates already."""

    def show(self, check: SumCheck, squares: float, *, is_whole: bool) -> None:
        """Compare what was added with the reports. squares: of its whole numbers. is_whole: is it what was sent?"""
        if self.weight is not None:
            check.see_client(self.clients[0], squares)
        else:
            check.see_part(self.rank, self.clients, squares)
        if not is_whole:
            check.see_damage(self.rank, self.clients)


def by_rank(remote: Sequence[Incoming], always: Sequence[int] = ()) -> list[Incoming]:
    """The sums that ranks send in place of these updates. always: ranks that send one of no update too."""
    return [
        Incoming(rank, tuple(each.clients[0] for each in remote if each.rank == rank), None)
        for rank in always or distinct(remote)
    ]


def distinct(remote: Sequence[Incoming]) -> list[int]:
    """The ranks, each once, in order."""
    return list(dict.fromkeys(each.rank for each in remote))


def arriving(aggregation: Aggregation, expected: Sequence[tuple[int, int]], dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield windows as they come; each is valid until the next one is asked for.

    expected: rank and length of each, in their order; `IN_FLIGHT` of each rank are on the way.
    """
    group, kept = aggregation.group, aggregation.local.sums
    width, ranks = max((length for _, length in expected), default=0), len({rank for rank, _ in expected})
    idle = [kept.lend(width, dtype) for _ in range(min(len(expected), IN_FLIGHT * ranks))]
    following = iter(expected)
    receiving: deque[tuple[Transfer, Tensor]] = deque()
    for _ in expected:
        while idle and (sender := next(following, None)):
            rank, length = sender
            buffer = idle.pop()
            receiving.append((start_take(group, buffer[:length], rank), buffer))
        transfer, buffer = receiving.popleft()
        yield group.wait(transfer)
        idle.append(buffer)
