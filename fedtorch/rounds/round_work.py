"""What a round moves: payload bytes as the meter of every rank counts them, and which rank sends them to which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Way = Literal["sums", "reduce", "updates", "star", "replicated", "allreduce"]


class Flow(NamedTuple):
    """What goes from one rank to another in a phase."""

    source: int
    target: int
    bytes: float


@dataclass(frozen=True)
class RoundWork:
    """What one round does, whoever measures it."""

    numbers: int
    """Shared numbers, of all vectors that are exchanged."""
    hosted: tuple[int, ...]
    """Clients of the round that each rank trains and sends for; the server first."""
    train_s: tuple[float, ...]
    """Processor seconds of every rank's local training."""
    exchange: Literal["auto", "reduce", "send"] = "auto"
    """`system.exchange`."""
    item_bytes: int = 4
    """Of a shared number."""
    message: Way | None = None
    """How compressed messages travel; None: vectors do."""
    message_bytes: int = 0
    """Of one of them."""

    @cached_property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.hosted)

    @cached_property
    def clients(self) -> int:
        """Of the round."""
        return sum(self.hosted)

    @cached_property
    def way(self) -> Way:
        """How updates go up; for vectors the rule of `comm.server_updates`."""
        if self.message is not None:
            return self.message
        senders = sum(1 for clients in self.hosted[1:] if clients)
        choice: list[tuple[int, int, Way]] = [
            (8 * senders, 0, "sums"),
            (16, 1, "reduce"),
            (self.item_bytes * sum(self.hosted[1:]), 2, "updates"),
        ]
        allowed = {"auto": choice, "reduce": choice[:2], "send": choice[2:]}[self.exchange]
        return min(allowed)[2]

    @property
    def down_bytes(self) -> int:
        """Of what is broadcast: weights, or with messages to the server its choice."""
        if self.message is None:
            return self.item_bytes * self.numbers
        return self.message_bytes if self.message == "star" else 0

    @property
    def headers(self) -> int:
        """Operations that begin with a header: rows of integers to the server, and its verdict."""
        if self.ranks == 1:
            return 0
        broadcast = 1 if self.down_bytes else 0
        if self.way in ("replicated", "allreduce"):
            return 3
        return broadcast + 3 + (self.clients if self.way == "star" else 1)

    @property
    def asides(self) -> int:
        """Other small messages to or from all ranks: reports, decisions, requests, digests. Each is half a header."""
        if self.ranks == 1:
            return 0
        others = {"star": 3 * self.clients + 2, "replicated": 3, "allreduce": 12}.get(self.way, 5)
        return 2 + others

    @property
    def meetings(self) -> int:
        """Before the broadcast, and before reports are gathered."""
        return 2 if self.ranks > 1 else 0

    def counted(self, rank: int) -> Counted:
        """Payload bytes that a rank's meter counts in a round, without reports; about, where sums are in slices."""
        others, hosts = self.ranks - 1, self.hosted[rank]
        if not others:
            return Counted(0, 0)
        down = self.down_bytes * (others if rank == 0 else 1)
        remote = self.hosted[1:]
        each = {"updates": self.item_bytes * self.numbers, "star": self.message_bytes}.get(self.way, 8 * self.numbers)
        if self.way == "replicated":
            mine = max(self.hosted) * self.message_bytes
            return Counted(mine, mine * others)
        if self.way == "allreduce":
            most = self._slices
            return Counted(most, most)
        if self.way == "reduce":
            return Counted(each * (others if rank == 0 else 1), down)
        if self.way == "sums":
            sent = sum(map(bool, remote)) if rank == 0 else int(hosts > 0)
        else:
            sent = sum(remote) if rank == 0 else hosts
        return Counted(each * sent, down)

    @cached_property
    def _slices(self) -> int:
        """About what a rank sends of sums in slices: its pieces, and what is dealt and gathered of the sum."""
        return math.ceil((max(self.hosted) + 2) * self.message_bytes * (self.ranks - 1) / self.ranks)

    @cached_property
    def down(self) -> list[Flow]:
        """gloo's broadcast: in step i the ranks below 2^i, which have it, send to those 2^i above."""
        found, reach = [], 1
        while reach < self.ranks and self.down_bytes:
            found += [Flow(rank, rank + reach, self.down_bytes) for rank in range(min(reach, self.ranks - reach))]
            reach *= 2
        return found

    @cached_property
    def up(self) -> list[Flow]:
        """What goes from rank to rank until the sum is known."""
        last, size = self.ranks - 1, self.ranks
        if not last:
            return []
        if self.way == "replicated":
            return [Flow(r, (r + 1) % size, max(self.hosted) * self.message_bytes * last) for r in range(size)]
        if self.way == "allreduce":
            return [Flow(r, o, self._slices / last) for r in range(size) for o in range(size) if o != r]
        if self.way == "reduce":  # a ring scatters the sum, then everybody's share goes to the server
            share = 8 * self.numbers / size
            ring = [Flow(rank, (rank + 1) % size, share * last) for rank in range(size)]
            return ring + [Flow(rank, 0, share) for rank in range(1, size)]
        return [Flow(rank, 0, self.counted(rank).up) for rank in range(1, size) if self.hosted[rank]]


class Counted(NamedTuple):
    """Of one rank; on the server `up` is what it receives, elsewhere what it sends, as in `comm.meter`."""

    up: int
    down: int
