"""Link between the user side and the assistant side of a dialog: keys and values cross it, never tokens or text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from fedtorch.core.errors import FedtorchError

HEADER_BYTES = 32  # int64 turn, rows, tokens, flag: what differs between increments
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Increment:
    """One segment's keys and values, or on the way back their gradients.

    Rows are those of the batch that have another turn, in its order.
    """

    turn: int
    """which segment"""
    is_last: bool
    """no other one follows from this sender in this direction"""
    mask: Tensor
    """uint8, shape (rows, tokens), 1 for real tokens"""
    data: Tensor
    """shape (layers, 2, rows, heads, tokens, head_dim), in the link's dtype, without a graph"""

    @property
    def overhead_bytes(self) -> int:
        """Bytes of header and mask."""
        return HEADER_BYTES + self.mask.numel()


class Peer(Protocol):
    """The other rank of a worker of two, as the sides of a dialog see it."""

    @property
    def leads(self) -> bool:
        """Is this rank the worker's first?"""
        ...

    def send(self, tensor: Tensor, about: Sequence[int] = ()) -> None:
        """Send a tensor and at most eight integers about it; returns once the other rank has received it."""
        ...

    def receive(self) -> tuple[Tensor, list[int]]:
        """Receive what the other rank sends: a flat tensor and eight integers."""
        ...

    def all_gather_floats(self, values: Sequence[float]) -> list[list[float]]:
        """Both ranks' values, by rank; as many from each."""
        ...


class Link(Protocol):
    """One end of the connection between two sides. Between ranks: one message for each increment."""

    def send(self, increment: Increment) -> None:
        """Hand an increment to the other end; does not wait for it to be received."""
        ...

    def receive(self) -> Increment:
        """The oldest increment that the other end sent; blocks until there is one."""
        ...


@dataclass
class Traffic:
    """Bytes that crossed a link, both ways."""

    messages: int = 0
    """increments, one each"""
    data_bytes: int = 0
    """of keys, values and their gradients"""
    overhead_bytes: int = 0
    """of headers and masks"""
    physical_bytes: int = 0
    """of all of these, those that left one process for another"""

    def count(self, increment: Increment, *, is_physical: bool = False) -> None:
        """Add one message."""
        self.messages += 1
        self.data_bytes += increment.data.nbytes
        self.overhead_bytes += increment.overhead_bytes
        if is_physical:
            self.physical_bytes += increment.data.nbytes + increment.overhead_bytes


@dataclass
class QueueLink:
    """One end of a link inside a process, where nothing is copied; see `link_pair`. Receiving too early is a bug."""

    outgoing: deque[Increment]
    """the other end's `incoming`"""
    incoming: deque[Increment]
    """what the other end sent and nobody has received, oldest first"""
    traffic: Traffic = field(default_factory=Traffic)
    """counts what this end sends; the ends of a pair share one"""

    def send(self, increment: Increment) -> None:
        """Hand the increment over in this process."""
        self.traffic.count(increment)
        self.outgoing.append(increment)

    def receive(self) -> Increment:
        """Take the increment that was handed over."""
        return self.incoming.popleft()


def link_pair(traffic: Traffic) -> tuple[QueueLink, QueueLink]:
    """Both ends of a link inside this process; both count into `traffic`."""
    one: deque[Increment] = deque()
    other: deque[Increment] = deque()
    return QueueLink(one, other, traffic), QueueLink(other, one, traffic)


@dataclass
class RankLink:
    """One end of a link between the two ranks of a worker; counts what is sent and what is received.

    An increment travels as one message: the bytes of its data and, behind them, of its mask, with (turn, rows, tokens,
    is_last, layers, heads, head_dim, place of the data's dtype in `_DTYPES`).
    """

    peer: Peer
    """the worker's other rank"""
    traffic: Traffic = field(default_factory=Traffic)
    """what this end sent and received"""

    def send(self, increment: Increment) -> None:
        """Send, and wait until the other rank has received it, which has nothing else to do then."""
        layers, _, rows, heads, tokens, width = increment.data.shape
        kind = _DTYPES.index(increment.data.dtype)
        parts = [part.detach().contiguous().view(-1).view(torch.uint8) for part in (increment.data, increment.mask)]
        self.peer.send(
            torch.cat(parts), (increment.turn, rows, tokens, int(increment.is_last), layers, heads, width, kind)
        )
        self.traffic.count(increment, is_physical=True)

    def receive(self) -> Increment:
        """Receive an increment from the other rank, its mask where its data are."""
        came, (turn, rows, tokens, is_last, layers, heads, width, kind) = self.peer.receive()
        shape = (layers, 2, rows, heads, tokens, width)
        dtype = _DTYPES[kind] if 0 <= kind < len(_DTYPES) else None
        num_bytes = 0 if dtype is None else prod(shape) * dtype.itemsize
        if dtype is None or came.dtype != torch.uint8 or came.numel() != num_bytes + rows * tokens:
            raise FedtorchError(
                f"{came.numel()} numbers ({came.dtype}) arrived; their header says {shape} of {dtype} and a mask of "
                f"{rows * tokens}: the two ranks do not walk through the same batch"
            )
        data, mask = came[:num_bytes].view(dtype), came[num_bytes:]
        increment = Increment(turn, bool(is_last), mask.view(rows, tokens), data.view(shape))
        self.traffic.count(increment, is_physical=True)
        return increment
