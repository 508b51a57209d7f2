"""How payloads move between ranks of one machine: through memory that both see, in place of sockets.

Each rank has a segment that has no name (`memfd_create`), so that nothing is left of it however the rank ends; the
ranks that exchange with it open it by `/proc`. A window is written into a slot of the sender's segment; what then goes
over gloo is the slot's number, and back, once the window was read, the same. So order, deadlines and the news that a
rank has died are gloo's, as for payloads that gloo sends itself.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from fedtorch.comm.transport.process_group import Came, Direct, Work, ignored
from fedtorch.comm.transport.segment import Segment, path_of
from fedtorch.comm.transport.windows import WINDOW

log = logging.getLogger(__name__)

SLOT_BYTES = 8 * WINDOW
"""One window of a sum; what is longer, other than a broadcast, goes over sockets."""
SLOTS = 4
_SLOT, _READ = 1, 2  # tags: which slot is filled, which one was read; payloads and numbers have 0


def all_gather(sockets: Direct, numbers: Sequence[int], size: int) -> list[list[int]]:
    """The numbers of every rank, as many on each; `size` is how many ranks there are."""
    mine = torch.tensor(numbers, dtype=torch.int64)
    everyone = [torch.zeros_like(mine) for _ in range(size)]
    sockets.all_gather(everyone, mine).wait()
    return [each.tolist() for each in everyone]


class Shared(Direct):
    """Windows to the server, their sums and its broadcasts through shared memory; all else as over sockets.

    A rank's windows are read in the order in which they were sent, and each frees its slot. Who sends waits only where
    all slots are full. The server's segment is for broadcasts, which nobody else makes.
    """

    def __init__(self, sockets: Direct, own: Segment, peers: dict[int, Segment]) -> None:
        """peers: place -> its segment; the server's have all others', theirs the server's."""
        super().__init__(sockets._group)
        self._own, self._peers = own, peers
        self._idle = deque(range(SLOTS))
        self._unread: deque[_Number] = deque()
        self._telling: deque[_Number] = deque()
        self._taken: tuple[int, int] | None = None

    def send(self, tensor: Tensor, rank: int, tag: int = 0) -> Work:
        if tag or rank or tensor.nbytes > SLOT_BYTES:
            return super().send(tensor, rank, tag)
        if (start := self._own.start(tensor)) is not None and start % SLOT_BYTES == 0:
            return _Lent(self.tell(start // SLOT_BYTES, 0, _SLOT), self.hear(0, _READ))
        if not self._idle:
            self._idle.append(self._known(self._unread.popleft().wait(), 0))
        slot = self._idle.popleft()
        self._own.part(slot * SLOT_BYTES, tensor).copy_(tensor)
        filled = self.tell(slot, 0, _SLOT)
        self._unread.append(self.hear(0, _READ))
        return filled

    def receive(self, tensor: Tensor, rank: int, tag: int = 0) -> Work:
        if tag or not rank or tensor.nbytes > SLOT_BYTES:
            return super().receive(tensor, rank, tag)
        return _Arrival(self, tensor, rank, self.hear(rank, _SLOT))

    def slots(self) -> list[Tensor]:
        """This rank's slots, bytes: what is sent from the beginning of one is not copied; wait until it is read.

        Meanwhile nothing else must be sent.
        """
        while self._unread:
            self._idle.append(self._known(self._unread.popleft().wait(), 0))
        return [self._own.whole(torch.uint8)[n * SLOT_BYTES :][:SLOT_BYTES] for n in range(SLOTS)]

    def take(self, like: Tensor, rank: int) -> Work:
        """Receive a window without a copy: `wait` gives it, as long as `like` and of its dtype, until `give_back`.

        On the server, of windows; waiting for the next one gives it back too.
        """
        return _Taken(self, like, rank, self.hear(rank, _SLOT))

    def give_back(self) -> None:
        """Let the rank whose window was taken last have its slot again."""
        if self._taken is not None:
            (rank, number), self._taken = self._taken, None
            self._tell_read(rank, number)

    def reduce(self, tensor: Tensor) -> Work:
        if tensor.nbytes > SLOT_BYTES:
            return super().reduce(tensor)
        if 0 in self._peers:
            return self.send(tensor, 0)
        return _Sum(self, tensor, {rank: self.hear(rank, _SLOT) for rank in self._peers})

    def broadcast(self, tensor: Tensor, came: Came = ignored) -> Work:
        if tensor.nbytes <= SLOT_BYTES:  # one window is as fast over sockets
            return super().broadcast(tensor)
        pieces = list(tensor.split(SLOT_BYTES // tensor.itemsize))
        return _Outgoing(self, pieces) if 0 not in self._peers else _Incoming(self, pieces)

    def map(self, vector: Tensor, segment: Segment | None, place: int, size: int) -> Tensor | None:
        """The server's vector as it is in its segment, on other ranks to be read only; None if one of them cannot.

        segment: on the server, the one that its `vector` is in; None: in none. place, size: see `machines.connect`.
        """
        mine = [os.getpid(), segment.file, vector.nbytes] if segment is not None else [0, 0, vector.nbytes]
        servers, *others = all_gather(self, mine, size)
        found, can = vector, servers[0] > 0 and all(other[2] == servers[2] for other in others)
        if can and place:
            try:
                mapped = Segment(vector.nbytes, path_of(*servers[:2]))
                mapped.close_file()
                found = mapped.whole(vector.dtype)
            except OSError as error:
                log.info("the server's vector is sent, for it cannot be read where it is: %s", error.strerror or error)
                can = False
        all_can = all(each for (each,) in all_gather(self, [int(can)], size))
        return found if all_can else None

    def drop(self) -> None:
        super().drop()
        self._unread.clear()
        self._telling.clear()
        self._taken = None

    def read(self, tensor: Tensor, rank: int, number: int, *, adds: bool = False) -> None:
        """Copy what another rank has in a slot, or add it, and let that rank have the slot again.

        Raises:
            RuntimeError: there is no such slot.
        """
        window = self.look(tensor, rank, number)
        tensor.add_(window) if adds else tensor.copy_(window)
        self._tell_read(rank, number)

    def read_next(self, tensor: Tensor) -> None:
        """Elsewhere than on the server: copy the next piece of its broadcast, once it is there."""
        self.read(tensor, 0, self.hear(0, _SLOT).wait())

    def look(self, like: Tensor, rank: int, number: int, *, is_taken: bool = False) -> Tensor:
        """Return another rank's window in a slot. is_taken: until `give_back`.

        Raises:
            RuntimeError: there is no such slot.
        """
        self._known(number, rank)
        if is_taken:
            self.give_back()
            self._taken = rank, number
        return self._peers[rank].part(number * SLOT_BYTES, like)

    def _known(self, number: int, rank: int) -> int:
        """The number of a slot, as another rank says.

        Raises:
            RuntimeError: there is no such slot.
        """
        if not 0 <= number < SLOTS:
            raise RuntimeError(f"rank {rank} of the group named slot {number} of {SLOTS}")
        return number

    def _tell_read(self, rank: int, number: int) -> None:
        while len(self._telling) >= SLOTS * len(self._peers):
            self._telling.popleft().wait()
        self._telling.append(self.tell(number, rank, _READ))

    def write(self, tensor: Tensor, number: int) -> list[_Number]:
        """On the server: put a piece into a slot and tell the others; what they will answer."""
        self._own.part(number * SLOT_BYTES, tensor).copy_(tensor)
        told = [self.tell(number, rank, _SLOT) for rank in self._peers]
        for each in told:
            each.wait()
        return [self.hear(rank, _READ) for rank in self._peers]

    def tell(self, number: int, rank: int, tag: int) -> _Number:
        value = torch.tensor([number])
        return _Number(super().send(value, rank, tag), value)

    def hear(self, rank: int, tag: int) -> _Number:
        value = torch.zeros(1, dtype=torch.int64)
        return _Number(super().receive(value, rank, tag), value)


class _Number:
    """A number on its way; lets go of the work once it is there."""

    def __init__(self, work: Work, value: Tensor) -> None:
        self._work: Work | None = work
        self._value = value

    def wait(self) -> int:
        work, self._work = self._work, None
        if work is not None:
            work.wait()
        return int(self._value)


class _Lent:
    """A window that is sent from where it is."""

    def __init__(self, filled: _Number, read: _Number) -> None:
        self._filled, self._read = filled, read

    def wait(self) -> None:
        self._filled.wait()
        self._read.wait()


class _Taken:
    """A window that is received where another rank has it."""

    def __init__(self, shared: Shared, like: Tensor, rank: int, slot: _Number) -> None:
        self._shared, self._like, self._rank, self._slot = shared, like, rank, slot

    def wait(self) -> Tensor:
        return self._shared.look(self._like, self._rank, self._slot.wait(), is_taken=True)


class _Arrival:
    """A window that another rank sends."""

    def __init__(self, shared: Shared, tensor: Tensor, rank: int, slot: _Number) -> None:
        self._shared, self._tensor, self._rank, self._slot = shared, tensor, rank, slot

    def wait(self) -> None:
        self._shared.read(self._tensor, self._rank, self._slot.wait())


class _Sum:
    """A window on the server, to which those of all others are added; of whole numbers, so the order is no matter."""

    def __init__(self, shared: Shared, tensor: Tensor, slots: dict[int, _Number]) -> None:
        self._shared, self._tensor, self._slots = shared, tensor, slots

    def wait(self) -> None:
        while self._slots:
            rank, slot = self._slots.popitem()
            self._shared.read(self._tensor, rank, slot.wait(), adds=True)


class _Outgoing:
    """The server's broadcast, a piece per slot; the first ones are there at once."""

    def __init__(self, shared: Shared, pieces: list[Tensor]) -> None:
        self._shared, self._left = shared, deque(enumerate(pieces))
        self._unread: deque[list[_Number]] = deque()
        for _ in range(min(SLOTS, len(pieces))):
            self._next()

    def _next(self) -> None:
        place, piece = self._left.popleft()
        self._unread.append(self._shared.write(piece, place % SLOTS))

    def wait(self) -> None:
        """All others have read all of it."""
        while self._unread:
            for answer in self._unread.popleft():
                answer.wait()
            if self._left:
                self._next()


class _Incoming:
    """Windows of a broadcast on a rank that receives it."""

    def __init__(self, shared: Shared, pieces: list[Tensor]) -> None:
        self._shared, self._pieces = shared, pieces

    def wait(self) -> None:
        """All of it is here."""
        for piece in self._pieces:
            self._shared.read_next(piece)
