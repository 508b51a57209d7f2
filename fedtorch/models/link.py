"""What crosses between the user side and the assistant side of a dialog: keys and values, never tokens or text."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

HEADER_BYTES = 32  # int64 turn, rows, tokens, flag


@dataclass(frozen=True)
class Increment:
    """One segment's keys and values, or on the way back their gradients.

    turn: which segment. is_last: no other one follows from this sender in this direction.
    mask: uint8, shape (rows, tokens), 1 for real tokens. data: shape (layers, 2, rows, heads, tokens, head_dim), in the
    link's dtype, without a graph. Rows are those of the batch that have another turn, in its order.
    """

    turn: int
    is_last: bool
    mask: Tensor
    data: Tensor

    @property
    def overhead_bytes(self) -> int:
        """Bytes of header and mask."""
        return HEADER_BYTES + self.mask.numel()


class Link(Protocol):
    """One end of the connection between two sides. Between ranks: header, then mask, then data, point to point."""

    def send(self, increment: Increment) -> None:
        """Hand an increment to the other end; does not wait for it to be received."""
        ...

    def receive(self) -> Increment:
        """The oldest increment that the other end sent; blocks until there is one."""
        ...


@dataclass
class Traffic:
    """Bytes of keys, values and their gradients on a link, both ways; `overhead_bytes` are headers and masks."""

    messages: int = 0
    data_bytes: int = 0
    overhead_bytes: int = 0

    def count(self, increment: Increment) -> None:
        """Add one message."""
        self.messages += 1
        self.data_bytes += increment.data.nbytes
        self.overhead_bytes += increment.overhead_bytes


@dataclass
class QueueLink:
    """One end of a link inside a process, where nothing is copied; see `link_pair`. Receiving too early is a bug."""

    outgoing: deque[Increment]
    incoming: deque[Increment]
    traffic: Traffic = field(default_factory=Traffic)

    def send(self, increment: Increment) -> None:
        """See `Link`."""
        self.traffic.count(increment)
        self.outgoing.append(increment)

    def receive(self) -> Increment:
        """See `Link`."""
        return self.incoming.popleft()


def link_pair(traffic: Traffic) -> tuple[QueueLink, QueueLink]:
    """Both ends of a link inside this process; both count into `traffic`."""
    one: deque[Increment] = deque()
    other: deque[Increment] = deque()
    return QueueLink(one, other, traffic), QueueLink(other, one, traffic)
