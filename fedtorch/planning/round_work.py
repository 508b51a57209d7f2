"""Moves of a round: payload bytes as the meter of every rank counts them, and which rank sends them to which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from fedtorch.comm.sums.sum_ways import choose
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.machines import first_of_each

Way = Literal["sums", "reduce", "updates", "star", "replicated", "allreduce"]
_WAYS: dict[Op, Way] = {Op.SEND_SUMS: "sums", Op.REDUCE: "reduce", Op.SEND_UPDATES: "updates"}


class Flow(NamedTuple):
    """Bytes that go from one rank to another in a phase."""

    source: int
    """The rank that sends."""
    target: int
    """The rank that receives."""
    bytes: float
    """Of payload; headers are counted apart."""


@dataclass(frozen=True)
class RoundWork:
    """Work of one round, whoever measures it."""

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
    sends_weights: bool = False
    """Beside messages: does the server send its weights, and no message?"""
    machines: tuple[int, ...] | None = None
    """The machine of each rank, numbered as they first occur, where one rank of each exchanges with the others; None:
    every rank does."""

    @cached_property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.hosted)

    @cached_property
    def clients(self) -> int:
        """Clients of the round."""
        return sum(self.hosted)

    @cached_property
    def way(self) -> Way:
        """How updates go up; for vectors the rule of `comm.sums.sum_ways`."""
        if self.message is not None:
            return self.message
        return _WAYS[choose(self.hosted, self.item_bytes, self.exchange, machines=self.machines)]

    @cached_property
    def leaders(self) -> list[int]:
        """The ranks that exchange between machines, the server first; all where each does."""
        return list(range(self.ranks)) if self.machines is None else first_of_each(self.machines)

    @property
    def down_bytes(self) -> int:
        """Bytes that are broadcast: weights, or with messages to the server its choice."""
        if self.message is None or self.sends_weights:
            return self.item_bytes * self.numbers
        return self.message_bytes if self.message == "star" else 0

    @property
    def headers(self) -> int:
        """Operations that begin with a header: rows of integers to the server, and its verdict."""
        if self.ranks == 1:
            return 0
        if self.way == "star":  # the choice is broadcast, and each message asked for
            return 1 + self.clients
        return 1

    @property
    def asides(self) -> int:
        """Other small messages to or from all ranks: requests and digests. Each is half a header."""
        if self.ranks == 1:
            return 0
        return {"star": 3 * self.clients + 2, "replicated": 3, "allreduce": 12}.get(self.way, 5)

    @property
    def meetings(self) -> int:
        """Before the broadcast, with its header, and with the reports, to which the decision is the answer."""
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
        """gloo's broadcast: in step i the places below 2^i, which have it, send to those 2^i above.

        A place is a rank, or a machine, whose leader passes it on.
        """
        found, reach, size = [], 1, len(self.leaders)
        while reach < size and self.down_bytes:
            pairs = zip(self.leaders, self.leaders[reach : 2 * reach], strict=False)
            found += [Flow(rank, other, self.down_bytes) for rank, other in pairs]
            reach *= 2
        return found + [Flow(leader, rank, self.down_bytes) for leader, rank in self._led if self.down_bytes]

    def is_led(self, rank: int) -> bool:
        """Does another rank of its machine exchange for it?"""
        return rank not in self.leaders

    def is_within(self, flow: Flow) -> bool:
        """Does it stay on a machine whose ranks share memory?"""
        return self.machines is not None and self.machines[flow.source] == self.machines[flow.target]

    @cached_property
    def _led(self) -> list[tuple[int, int]]:
        """The leader and each rank that is led."""
        if self.machines is None:
            return []
        return [(self.leaders[n], rank) for rank, n in enumerate(self.machines) if rank != self.leaders[n]]

    @cached_property
    def up(self) -> list[Flow]:
        """Flows from rank to rank until the sum is known."""
        last, size = self.ranks - 1, self.ranks
        if not last:
            return []
        if self.way == "replicated":
            return [Flow(r, (r + 1) % size, max(self.hosted) * self.message_bytes * last) for r in range(size)]
        if self.way == "allreduce":
            return [Flow(r, o, self._slices / last) for r in range(size) for o in range(size) if o != r]
        if self.way == "reduce":
            return [Flow(rank, leader, 8 * self.numbers) for leader, rank in self._led] + self._between_leaders
        return [Flow(rank, 0, self.counted(rank).up) for rank in range(1, size) if self.hosted[rank]]

    @property
    def _between_leaders(self) -> list[Flow]:
        """One machine's sum goes to the server's; of more places a ring scatters the sum, and all send their share."""
        size, (first, *others) = len(self.leaders), self.leaders
        if self.machines is not None and size == 2:
            return [Flow(others[0], first, 8 * self.numbers)]
        share = 8 * self.numbers / size
        ring = [Flow(self.leaders[n], self.leaders[(n + 1) % size], share * (size - 1)) for n in range(size)]
        return ring + [Flow(rank, first, share) for rank in others]


class Counted(NamedTuple):
    """Counts of one rank; on the server `up` is what it receives, elsewhere what it sends, as in the meter."""

    up: int
    """Bytes towards the server."""
    down: int
    """Bytes from the server; on the server all that it sends."""
