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
from fedtorch.comm.transport.windows import SUM_DTYPE


class Incoming(NamedTuple):
    """A vector that the server receives from another rank for a sum: one update, or a sum of the rank's."""

    rank: int
    """Who sends it."""
    clients: tuple[str, ...]
    """Whose updates it is made of."""
    weight: float | None
    """Weight of the update; None: it is a sum of the clients' weighted updates already."""

    def dtype(self, of_update: torch.dtype) -> torch.dtype:
        """Number format in which it travels. of_update: that of updates."""
        return SUM_DTYPE if self.weight is None else of_update

    def show(self, check: SumCheck, squares: float, *, is_whole: bool) -> None:
        """Compare what was added with the reports. squares: of its whole numbers. is_whole: is it what was sent?"""
        if self.weight is not None:
            check.see_client(self.clients[0], squares)
        else:
            check.see_part(self.rank, self.clients, squares)
        if not is_whole:
            check.see_damage(self.rank, self.clients)


def by_rank(aggregation: Aggregation, remote: Sequence[Incoming]) -> list[Incoming]:
    """The sums that ranks send in place of these updates; with `all_send` of no update too."""
    found = []
    for rank in aggregation.group.members[1:] if aggregation.all_send else distinct(remote):
        own = [each for each in remote if each.rank == rank]
        whole = Incoming(rank, tuple(each.clients[0] for each in own), None)
        found.append(own[0] if aggregation.leaves_as_update(len(own)) else whole)
    return found


def distinct(remote: Sequence[Incoming]) -> list[int]:
    """The ranks, each once, in order."""
    return list(dict.fromkeys(each.rank for each in remote))


def arriving(aggregation: Aggregation, expected: Sequence[tuple[Incoming, int]]) -> Iterator[Tensor]:
    """Yield windows as they come; each is valid until the next one is asked for.

    expected: of which vector each is, and its length, in their order; `IN_FLIGHT` of each rank are on the way.
    """
    group, kept, own = aggregation.group, aggregation.local.sums, aggregation.local.dtype
    width, ranks = max((length for _, length in expected), default=0), len({each.rank for each, _ in expected})
    widest = max((each.dtype(own) for each, _ in expected), key=lambda dtype: dtype.itemsize, default=own)
    idle = [kept.lend(width, widest) for _ in range(min(len(expected), IN_FLIGHT * ranks))]
    following = iter(expected)
    receiving: deque[tuple[Transfer, Tensor]] = deque()
    for _ in expected:
        while idle and (sender := next(following, None)):
            each, length = sender
            buffer = idle.pop()
            receiving.append((start_take(group, buffer.view(each.dtype(own))[:length], each.rank), buffer))
        transfer, buffer = receiving.popleft()
        yield group.wait(transfer)
        idle.append(buffer)
