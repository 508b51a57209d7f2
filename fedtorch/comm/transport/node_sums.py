"""Payloads between machines of several ranks: within a machine through memory, between machines by one rank of each.

The first rank of a machine leads it; the server leads its own. A broadcast reaches every other machine once, whose
leader passes it on through memory. A sum is added up within every machine by its leader, and the leaders' sums are
added up between machines: whole numbers, so the bits are those of any other order. What one rank sends the server goes
straight there. Numbers and headers are not in this: they go from every rank to the server, as they always do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtorch.comm.transport.pieces import cut
from fedtorch.comm.transport.process_group import Came, Transport, Work, ignored
from fedtorch.comm.transport.shared import SLOTS, Shared


class NodeSums(Transport):
    """Groups within a machine and between leaders beside the one of all ranks, which carries the rest.

    If an operation fails on a rank, `drop` closes all its sockets, by which those that wait for it hear of it, and in
    turn those that wait for them.
    """

    machines: tuple[int, ...]
    """The machine of each rank, numbered as they first occur."""

    def __init__(
        self,
        others: Transport,
        within: Shared | None,
        between: Transport | None,
        machines: Sequence[int],
        place: int,
        beat: Callable[[], None],
    ) -> None:
        """others: all ranks, for what is not passed on or added up. within: this machine's, where it has several.

        between: leaders, if this rank is one. beat: called after every piece of something long.
        """
        self.machines = tuple(machines)
        self._place, self._beat = place, beat
        self._wide = others
        self._within, self._between, self._leads = within, between, between is not None
        self._servers = [other for other, number in enumerate(machines) if number == 0]
        self._adding: deque[_Sum] = deque()
        self._idle: list[Tensor] = []

    def broadcast(self, tensor: Tensor, came: Came = ignored) -> Work:
        pieces = list(cut(tensor)) if tensor.numel() else []
        if self._between is None:
            return _Came(self, pieces)
        return _Passed(self, pieces, [self._between.broadcast(piece) for piece in pieces])

    def reduce(self, tensor: Tensor) -> Work:
        begun = self._within.reduce(tensor) if self._within is not None else None
        if not self._leads:
            assert begun is not None, "a rank that is alone on its machine leads it"
            return begun
        self._adding.append(_Sum(self, tensor, begun))
        return self._adding[-1]

    def send(self, tensor: Tensor, rank: int) -> Work:
        near = self._near(self._place) if rank == 0 else None
        return self._wide.send(tensor, rank) if near is None else near.send(tensor, 0)

    def receive(self, tensor: Tensor, rank: int) -> Work:
        near = self._near(rank)
        if near is None or self._place:
            return self._wide.receive(tensor, rank)
        return near.receive(tensor, self._servers.index(rank))

    def all_gather(self, everyone: Sequence[Tensor], mine: Tensor) -> Work:
        return self._wide.all_gather(everyone, mine)

    def all_to_all(self, into: Tensor, came: Sequence[int], sent: Tensor, sizes: Sequence[int], longest: int) -> Work:
        return self._wide.all_to_all(into, came, sent, sizes, longest)

    def slots(self) -> list[Tensor]:
        """Return memory for sums that this machine's leader adds, or the server takes."""
        return [] if self._within is None or self._leads else self._within.slots()

    def take(self, like: Tensor, rank: int) -> Work:
        """Take a window from shared memory; on the server, what comes from another machine is received in `like`."""
        near = self._near(rank)
        return Received(self._wide, like, rank) if near is None else near.take(like, self._servers.index(rank))

    def give_back(self) -> None:
        """Give a window's memory back."""
        if self._within is not None:
            self._within.give_back()

    def drop(self) -> None:
        for each in (self._wide, self._within, self._between):
            if each is not None:
                each.drop()
        self._adding.clear()
        self._idle.clear()

    def _near(self, rank: int) -> Shared | None:
        """The memory that a rank of the server's machine shares with it."""
        return self._within if rank and rank in self._servers else None

    def add_up(self) -> None:
        """On a leader: what has begun within the machine goes on between the leaders, in the order in which it began.

        Every rank has begun the same sums before it waits for the first of them, so none waits for another's later one.
        """
        while self._adding:
            self._adding.popleft().cross()

    def cross(self, tensor: Tensor) -> Work:
        """Begin to add the leaders' tensors into the server's."""
        assert self._between is not None
        if len(set(self.machines)) > 2:
            return self._between.reduce(tensor)  # a ring, by which two machines would send each other a half more
        if self._place:
            return self._between.send(tensor, 0)
        buffer = self._idle.pop() if self._idle else torch.empty_like(tensor)
        buffer = buffer if len(buffer) >= len(tensor) and buffer.dtype == tensor.dtype else torch.empty_like(tensor)
        return _Added(self._between.receive(buffer[: len(tensor)], 1), tensor, buffer, self._idle)

    def pass_on(self, tensor: Tensor, slot: int) -> list[Any]:
        """On a leader: a piece of a broadcast into a slot for this machine's others; their answers are to come."""
        return [] if self._within is None else self._within.write(tensor, slot)

    def hear(self, tensor: Tensor) -> None:
        """Elsewhere: the next piece, once it is there."""
        assert self._within is not None
        self._within.read_next(tensor)

    def beat(self) -> None:
        """A sign of life."""
        self._beat()


class Received:
    """A window that is copied into a buffer of this rank; `wait` gives the buffer."""

    def __init__(self, payloads: Transport, buffer: Tensor, place: int) -> None:
        self._work, self._buffer = payloads.receive(buffer, place), buffer

    def wait(self) -> Tensor:
        self._work.wait()
        return self._buffer


class _Sum:
    """On a leader: a window to which first its machine's are added, then, on the server, the others' leaders'."""

    def __init__(self, sums: NodeSums, tensor: Tensor, within: Work | None) -> None:
        self._sums, self._tensor = sums, tensor
        self._works = [within] if within is not None else []
        self._has_crossed = False

    def cross(self) -> None:
        """Wait for this machine's; begin the others'."""
        while self._works:
            self._works.pop().wait()
        self._works.append(self._sums.cross(self._tensor))
        self._has_crossed = True

    def wait(self) -> None:
        if not self._has_crossed:
            self._sums.add_up()
        while self._works:
            self._works.pop().wait()
        self._sums.beat()


class _Added:
    """On the server: another machine's window, added when it is there."""

    def __init__(self, work: Work, tensor: Tensor, buffer: Tensor, idle: list[Tensor]) -> None:
        self._work, self._tensor, self._buffer, self._idle = work, tensor, buffer, idle

    def wait(self) -> None:
        self._work.wait()
        self._tensor.add_(self._buffer[: len(self._tensor)])
        self._idle.append(self._buffer)


class _Passed:
    """A broadcast on a leader, which passes on what has come."""

    def __init__(self, sums: NodeSums, pieces: list[Tensor], works: list[Work]) -> None:
        self._sums, self._pieces, self._works = sums, pieces, works
        self._is_servers = sums._place == 0
        self._unread: deque[list[Any]] = deque()

    def wait(self) -> None:
        """All of it is here, and this machine's others have read it."""
        try:
            for number, piece in enumerate(self._pieces):
                if not self._is_servers:
                    self._works.pop(0).wait()
                if len(self._unread) == SLOTS:
                    self._answers()
                self._unread.append(self._sums.pass_on(piece, number % SLOTS))
                self._sums.beat()
            while self._unread:
                self._answers()
            while self._works:
                self._works.pop(0).wait()
                self._sums.beat()
        finally:
            self._works.clear()
            self._unread.clear()

    def _answers(self) -> None:
        for answer in self._unread.popleft():
            answer.wait()


class _Came:
    """A broadcast on a rank to which its machine's leader passes it on."""

    def __init__(self, sums: NodeSums, pieces: list[Tensor]) -> None:
        self._sums, self._pieces = sums, pieces

    def wait(self) -> None:
        """All of it is here."""
        for piece in self._pieces:
            self._sums.hear(piece)
            self._sums.beat()
