"""A process group between pretended devices that holds to NCCL's rules, over gloo.

1. It takes tensors of one device, contiguous ones alone.
2. A rank's operations happen in the order in which they were begun. Before the group is connected as a whole, a first
   send to or from a rank waits for that rank, and what was begun later waits too.
3. No work ends before somebody has asked whether it is completed; a wait before that would block the host.
4. Nothing tells a rank that another one has died: what waits for it hangs, until the group is aborted.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from pretended_device import _real, install, used
from torch import Tensor

from fedtorch.comm.transport import device as staged
from fedtorch.comm.transport import group
from fedtorch.core import devices

_make_group = group.make_group
_ONE = timedelta(seconds=600)


class Work:
    """An operation that was begun."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.was_asked = False

    def is_completed(self) -> bool:
        self.was_asked = True
        return self.done.is_set()

    def wait(self) -> None:
        """Returns at once, for somebody has seen that the work is completed; an error else."""
        if not (self.was_asked and self.done.is_set()):
            raise AssertionError("a wait for a work that nobody knows to be completed would block the host")


class PretendedNccl:
    """The methods of torch's ProcessGroupNCCL that the package calls."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._gloo: Any = dist.ProcessGroupGloo(dist.PrefixStore("over gloo", store), rank, size, _ONE)
        self._rank, self._size = rank, size
        self._met: set[int] = set()
        self._begun: queue.SimpleQueue[tuple[Callable[[], Any], Work] | None] = queue.SimpleQueue()
        threading.Thread(target=self._move, daemon=True).start()

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Connect the whole group, once all of its ranks have come."""
        assert device.type == "pretended"
        self._gloo.barrier(dist.BarrierOptions()).wait()
        self._met = set(range(self._size))
        used["connected eagerly"] += 1

    def broadcast(self, tensors: list[Tensor], options: Any) -> Work:
        return self._begin(tensors, lambda held: self._gloo.broadcast(held, options))

    def reduce(self, tensors: list[Tensor], options: Any) -> Work:
        return self._begin(tensors, lambda held: self._gloo.reduce(held, options))

    def allreduce(self, tensors: list[Tensor], options: Any) -> Work:
        return self._begin(tensors, lambda held: self._gloo.allreduce(held, options))

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Work:
        return self._begin(tensors, lambda held: self._gloo.send(held, rank, tag), self._meet(rank))

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Work:
        return self._begin(tensors, lambda held: self._gloo.recv(held, rank, tag), self._meet(rank))

    def allgather(self, everyone: list[list[Tensor]], mine: list[Tensor]) -> Work:
        tensors = [*everyone[0], *mine]
        return self._begin(tensors, lambda held: self._gloo.allgather([held[:-1]], held[-1:]))

    def alltoall_base(self, into: Tensor, sent: Tensor, came: list[int], sizes: list[int], options: Any) -> Work:
        return self._begin([into, sent], lambda held: self._gloo.alltoall_base(held[0], held[1], came, sizes, options))

    def abort(self) -> None:
        """End what hangs."""
        self._begun.put(None)

    def _meet(self, rank: int) -> Callable[[], None]:
        """Two ranks that exchange for the first time connect, when both have come."""
        if rank in self._met:
            return lambda: None
        self._met.add(rank)
        hello, answer = torch.zeros(1), torch.zeros(1)

        def connect() -> None:
            sent = self._gloo.send([hello], rank, 1 << 20)
            self._gloo.recv([answer], rank, 1 << 20).wait()
            sent.wait()

        return connect

    def _begin(self, tensors: Sequence[Tensor], start: Callable[[list[Tensor]], Any], before: Any = None) -> Work:
        for tensor in tensors:
            if tensor.device.type != "pretended":
                raise ValueError(f"Tensors must be on the device, and one of shape {tuple(tensor.shape)} is not")
            if not tensor.is_contiguous():
                raise ValueError("Tensors must be contiguous")
        if len({tensor.device for tensor in tensors}) > 1:
            raise ValueError("Tensors must be on one device")
        used["moved over nccl"] += 1
        work, held = Work(), [_real(tensor) for tensor in tensors]

        def move() -> None:
            if before is not None:
                before()
            start(held).wait()

        self._begun.put((move, work))
        return work

    def _move(self) -> None:
        """Do what was begun, one after the other; what cannot end hangs, and so does all that comes after it."""
        while (begun := self._begun.get()) is not None:
            move, work = begun
            try:
                move()
            except RuntimeError:  # another rank is gone, of which NCCL says nothing
                return
            work.done.set()


def install_nccl() -> torch.device:
    """A pretended device for this rank alone, with NCCL between those of all ranks; returns the device."""
    device = install()
    name = f"pretended {os.environ['RANK']}"
    group.make_group = _make  # type: ignore[assignment]
    dist.is_nccl_available = lambda: True
    devices.identity = lambda device: name
    devices.versions = lambda device: {"gpu": device.type} if devices.is_gpu(device) else {}
    devices.own = lambda choice, **about: device  # type: ignore[assignment]
    devices.present = lambda: device
    staged._WATCH_EVERY_S = 0.2
    _carry_pairs()
    return device


def _carry_pairs() -> None:
    """Torch's default group of a worker has such a group for tensors of the device, as `cpu:gloo,cuda:nccl` has NCCL.

    Its send and receive come back when they are begun, as those over NCCL do; here they wait, as nothing else would
    keep the next read of the tensor from being too early.
    """
    begin, send, receive = dist.init_process_group, dist.send, dist.recv
    pair: list[PretendedNccl] = []

    def begun(backend: str, *, store: dist.Store, rank: int, world_size: int, timeout: timedelta = _ONE) -> None:
        has_nccl = "nccl" in backend
        begin("gloo" if has_nccl else backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
        if has_nccl:
            pair[:] = [PretendedNccl(dist.PrefixStore("pair", store), rank, world_size)]

    def moved(way: str, over_gloo: Callable[..., Any], tensor: Tensor, rank: int) -> Any:
        if tensor.device.type != "pretended":
            return over_gloo(tensor, rank)
        work = getattr(pair[0], way)([tensor], rank, 0)
        while not work.is_completed():
            work.done.wait(1)
        used["moved between a pair"] += 1
        return work.wait()

    dist.init_process_group = begun  # type: ignore[assignment]
    dist.send, dist.recv = partial(moved, "send", send), partial(moved, "recv", receive)


def _make(backend: str, store: dist.Store, rank: int, size: int, *how: Any) -> Any:
    if backend == "nccl":
        return PretendedNccl(store, rank, size)
    return _make_group("gloo", store, rank, size, *how)
