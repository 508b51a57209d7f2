"""How payloads and numbers move straight from where they are, and what every transport can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

Came = Callable[[int], None]
"""Told how many numbers of a payload are there, from its first one on; never fewer than before."""


def ignored(stop: int) -> None:
    """Take what is told as `Came`, and do nothing."""


class Work(Protocol):
    """An operation under way, as torch.distributed's own."""

    def wait(self) -> object: ...


class Transfer:
    """Something under way; the group can let go of it, which a list of works in some live frame would prevent."""

    def __init__(self, work: Work) -> None:
        self.work: Any = work


class Transport(Protocol):
    """Moves flat CPU tensors between the ranks of a group, whose rank 0 is the server; all but `drop` begin only.

    came: called while the rank waits, by a transport that moves the tensor in pieces; others do not call it.
    """

    def broadcast(self, tensor: Tensor, came: Came = ignored) -> Work: ...
    def reduce(self, tensor: Tensor) -> Work: ...
    def send(self, tensor: Tensor, rank: int) -> Work: ...
    def receive(self, tensor: Tensor, rank: int) -> Work: ...
    def all_gather(self, everyone: Sequence[Tensor], mine: Tensor) -> Work: ...
    def all_to_all(
        self, into: Tensor, came: Sequence[int], sent: Tensor, sizes: Sequence[int], longest: int
    ) -> Work: ...
    def drop(self) -> None: ...


class Direct:
    """Tensors as they are, which must be where the process group can read them."""

    def __init__(self, group: Any) -> None:
        self._group = group
        """A ProcessGroupGloo or ProcessGroupNCCL, whose collectives are missing in torch 2.13's type stubs."""

    def broadcast(self, tensor: Tensor, came: Came = ignored) -> Work:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self._group.broadcast([tensor], options)

    def reduce(self, tensor: Tensor) -> Work:
        options = dist.ReduceOptions()
        options.rootRank = 0
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)
        return self._group.reduce([tensor], options)

    def gather(self, everyone: Sequence[Tensor], mine: Tensor) -> Work:
        """everyone: on the server alone; empty elsewhere."""
        options = dist.GatherOptions()
        options.rootRank = 0
        return self._group.gather([list(everyone)] if everyone else [], [mine], options)

    def send(self, tensor: Tensor, rank: int, tag: int = 0) -> Work:
        """tag: what is sent is received in order among what has the same one."""
        return self._group.send([tensor], rank, tag)

    def receive(self, tensor: Tensor, rank: int, tag: int = 0) -> Work:
        return self._group.recv([tensor], rank, tag)

    def all_gather(self, everyone: Sequence[Tensor], mine: Tensor) -> Work:
        return self._group.allgather([list(everyone)], [mine])

    def all_to_all(self, into: Tensor, came: Sequence[int], sent: Tensor, sizes: Sequence[int], longest: int) -> Work:
        """came, sizes: elements of each rank's part in `into` and `sent`. longest: of all parts of all ranks."""
        return self._group.alltoall_base(into, sent, list(came), list(sizes), dist.AllToAllOptions())

    def all_reduce(self, tensor: Tensor) -> Work:
        return self._group.allreduce([tensor], dist.AllreduceOptions())

    def drop(self) -> None:
        self._group = None
