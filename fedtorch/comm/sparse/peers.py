"""How a rank exchanges pieces of messages with all others, where none of them is in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.comm.sums.aggregation import Aggregation, Request, Term
from fedtorch.comm.transport.digests import window_digest
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.meter import Meter
from fedtorch.core.errors import PreflightError
from fedtorch.core.update import Report, UpdateBuffer

Whole = npt.NDArray[np.int64]


class Peers(Protocol):
    """All ranks that take part, as one of them sees them; every rank calls the same methods in the same order."""

    rank: int
    """This rank's number in the job."""
    members: tuple[int, ...]
    """The ranks, the server first; lists of all of them are in this order."""
    meter: Meter
    """Of this rank; what is sent and received here is counted under `aggregate`, counts of digits under `select`."""

    def enter(self, accepted: Sequence[Report], weights: Sequence[float]) -> tuple[Sequence[Term], list[Tensor]]:
        """Begin: (the accepted clients as the server has them, the messages of this rank's own, in their order).

        accepted, weights: on the server; what others pass is ignored.
        """
        ...

    def all_to_all(self, parts: Sequence[Tensor], limit_bytes: int) -> list[Tensor]:
        """Send each member its part (uint8) of at most `limit_bytes`; what each of them sent this rank."""
        ...

    def all_gather(self, mine: Tensor, limit_bytes: int) -> list[Tensor]:
        """Give all members the bytes of every member (uint8, of any length up to `limit_bytes`)."""
        ...

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every member's numbers, as many on each."""
        ...

    def add(self, numbers: Whole) -> Whole:
        """The sum of all members' whole numbers, of one shape."""
        ...


class Alone:
    """One process, which has everything."""

    rank: int = 0
    members: tuple[int, ...] = (0,)

    def __init__(self, local: UpdateBuffer, meter: Meter, begin: Callable[[], None]) -> None:
        """begin: called by `enter`."""
        self._local, self.meter, self._begin = local, meter, begin

    def enter(self, accepted: Sequence[Report], weights: Sequence[float]) -> tuple[Sequence[Term], list[Tensor]]:
        """Begin the exchange."""
        self._begin()
        terms = [Term(place, 0, weight) for place, weight in enumerate(weights)]
        return terms, [self._local.get(report.client) for report in accepted]

    def all_to_all(self, parts: Sequence[Tensor], limit_bytes: int) -> list[Tensor]:
        """Give every part to its member."""
        return list(parts)

    def all_gather(self, mine: Tensor, limit_bytes: int) -> list[Tensor]:
        """Give all members the bytes of every member."""
        return [mine]

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Give all members the numbers of every member."""
        return [list(numbers)]

    def add(self, numbers: Whole) -> Whole:
        """Add the numbers of all members."""
        return numbers


class GroupPeers:
    """The members of the federation's group."""

    def __init__(self, aggregation: Aggregation, places: Mapping[str, tuple[int, int]]) -> None:
        """places: on the server, client -> (index in the manifest, rank that has its message)."""
        self._aggregation, self._group, self._places = aggregation, aggregation.group, places
        self.rank, self.members, self.meter = self._group.rank, self._group.members, aggregation.meter
        self._place = self.members.index(self.rank)

    def enter(self, accepted: Sequence[Report], weights: Sequence[float]) -> tuple[Sequence[Term], list[Tensor]]:
        """Begin the exchange: all members agree on it."""
        if self.rank == 0:
            terms: Sequence[Term] = [
                Term(*self._places[report.client], weight) for report, weight in zip(accepted, weights, strict=True)
            ]
            self._aggregation.broadcast_request(Request(Op.ALL_REDUCE, terms))
        else:
            terms = self._aggregation.receive_request().terms
        return terms, [message for message, _ in self._aggregation.agree(Op.ALL_REDUCE, terms)]

    def all_to_all(self, parts: Sequence[Tensor], limit_bytes: int) -> list[Tensor]:
        """Exchange parts; sizes and digests go first, so that nothing else than what was announced is taken."""
        announced = [number for part in parts for number in (part.numel(), window_digest(part))]
        rows = self._group.all_gather_numbers(announced)
        sizes = [row[::2] for row in rows]
        self._bound(sizes, limit_bytes)
        came = [size[self._place] for size in sizes]
        into, sent = torch.empty(sum(came), dtype=torch.uint8), torch.cat(list(parts))
        longest = max(map(max, sizes))
        if longest:
            own = sizes[self._place]
            transfer = self._group.begin(lambda transport: transport.all_to_all(into, came, sent, own, longest))
            self._group.wait(transfer)
        found = list(into.split(came))
        for place, (part, row) in enumerate(zip(found, rows, strict=True)):
            self._group.see_whole(place, window_digest(part) == row[2 * self._place + 1])
        kept = parts[self._place].numel()
        self._count(len(sent) - kept, len(into) - kept)
        return found

    def all_gather(self, mine: Tensor, limit_bytes: int) -> list[Tensor]:
        """Gather bytes; gloo gathers equal sizes only, so the shorter ones are filled up."""
        sizes = [row[0] for row in self._group.all_gather_numbers([mine.numel()])]
        self._bound([sizes], limit_bytes)
        padded = torch.nn.functional.pad(mine, (0, max(sizes) - len(mine)))
        everyone = [torch.empty_like(padded) for _ in sizes]
        if max(sizes):
            self._group.all_gather(everyone, padded)
        others = len(sizes) - 1
        self._count(len(padded) * min(1, others), len(padded) * others)
        return [each[:size] for each, size in zip(everyone, sizes, strict=True)]

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Gather numbers over the process group."""
        return self._group.all_gather_numbers(numbers)

    def add(self, numbers: Whole) -> Whole:
        """Add numbers over the process group."""
        total = torch.from_numpy(numbers.copy()).view(-1)
        self._group.wait(self._group.begin(lambda gloo: gloo.all_reduce(total), over_sockets=True))
        num_bytes = total.nbytes * min(1, len(self.members) - 1)
        self.meter.count("up", "select", physical=num_bytes)
        self.meter.count("down", "select", physical=num_bytes)
        return total.view(numbers.shape).numpy()

    def _bound(self, sizes: Sequence[Sequence[int]], limit_bytes: int) -> None:
        """All ranks have the same sizes, so all of them raise.

        Raises:
            PreflightError: a rank is about to send more than there can be.
        """
        for rank, row in zip(self.members, sizes, strict=False):
            if not 0 <= min(row) <= max(row) <= limit_bytes:
                self._group.drop()
                raise PreflightError(
                    f"rank {rank} is about to send {max(row)} bytes of a sparse sum; expected at most {limit_bytes}"
                )

    def _count(self, up: int, down: int) -> None:
        self.meter.count("up", "aggregate", physical=up)
        self.meter.count("down", "aggregate", physical=down)
