"""How payloads move window by window through a device, or from it, by a group of its own as NCCL's."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from fedtorch.comm.job.ports import Ports, gloo_device
from fedtorch.comm.transport.environment import environment
from fedtorch.comm.transport.process_group import Came, Direct, Work, ignored
from fedtorch.comm.transport.windows import WINDOW
from fedtorch.core import devices

Backend = Literal["gloo", "nccl"]
WINDOW_BYTES = 8 * WINDOW  # one window of a sum
SLOTS = 3  # windows on the way: one is filled, one moves, one is emptied
_UNDER_WAY = 8  # windows that were begun and are not over; of more the driver's queue could hold up the host
_POLL_S = 1e-4
_THREADS = 2  # of gloo, as it takes by itself for each device
_WATCH_EVERY_S = 1.0


@dataclass(frozen=True)
class Staging:
    """How payloads travel by a second group."""

    backend: Backend
    """Of that group."""
    device: torch.device
    """Where its tensors are."""
    pin: bool
    """Whether what the device reads and writes on the host is page-locked."""
    resident: bool = False
    """Whether vectors lie on devices: then ranks of one machine, too, exchange from there, and share no memory."""


@dataclass
class _Piece:
    """A part of a tensor that fits into one window."""

    job: _Job
    """The operation it belongs to."""
    move: Callable[[Tensor], Work]
    """Begins to move the window."""
    dtype: torch.dtype
    """Of the tensor; windows are bytes and are viewed as that."""
    length: int
    """Elements of the window."""
    source: Tensor | None = None
    """What is copied to the window's beginning before it moves."""
    targets: Sequence[Tensor] = ()
    """What is filled from it afterwards, one after the other."""
    targets_at: int = 0
    """The element of the window from which on they are filled."""
    there: Tensor | None = None
    """The part itself, where it lies on the device and moves as it is."""


@dataclass
class _Slot:
    """A window, in bytes."""

    host: Tensor
    """In the host's memory."""
    device: Tensor
    """In the device's."""


class _Job:
    """One operation, in pieces; its wait ends with the last of them."""

    def __init__(self, finish: Callable[[_Job], None]) -> None:
        self.pieces_left = 0
        """Pieces that are not done."""
        self._finish = finish

    def wait(self) -> None:
        self._finish(self)


class Staged:
    """Tensors over a group that only moves what is on `device` (NCCL): those of the CPU through windows there.

    Whole tensors that are broadcast, reduced, sent or received may lie on the device: they move from there, in the same
    pieces, so one rank may have them there and another on the CPU. They are read and written on the present stream.

    Every rank does its operations strictly in the order in which they were begun, at most `SLOTS` windows at a time.
    So two ranks never wait for each other's later operations: a rank other than the server exchanges with the server
    alone, in an order that both have agreed on, and what it waits for is the first thing the server has not done yet.
    """

    def __init__(
        self, group: Any, device: torch.device, *, pin: bool, timeout_s: float, watch: Callable[[], None] | None = None
    ) -> None:
        """Takes the memory of its windows.

        watch: called now and then while a window is under way; raises when it will never come. Without it the group's
            own wait must end when a rank has left, as gloo's does.
        """
        self._group, self._inner, self._is_root = group, Direct(group), group.rank() == 0
        self._size: int = group.size()
        self._device, self._pin, self._timeout_s, self._watch = device, pin, timeout_s, watch
        self._stream = devices.new_stream(device)
        self._idle = [
            _Slot(
                (devices.page_locked if pin else torch.empty)(WINDOW_BYTES, dtype=torch.uint8),
                torch.empty(WINDOW_BYTES, dtype=torch.uint8, device=device),
            )
            for _ in range(SLOTS)
        ]
        self._waiting: deque[_Piece] = deque()
        self._moving: deque[tuple[_Piece, _Slot | None, Work]] = deque()

    def broadcast(self, tensor: Tensor, came: Came = ignored) -> Work:
        return self._begin(tensor, self._inner.broadcast, copies_in=self._is_root, copies_out=not self._is_root)

    def reduce(self, tensor: Tensor) -> Work:
        return self._begin(tensor, self._inner.reduce, copies_in=True, copies_out=self._is_root)

    def send(self, tensor: Tensor, rank: int) -> Work:
        return self._begin(tensor, lambda window: self._inner.send(window, rank), copies_in=True, copies_out=False)

    def receive(self, tensor: Tensor, rank: int) -> Work:
        return self._begin(tensor, lambda window: self._inner.receive(window, rank), copies_in=False, copies_out=True)

    def all_gather(self, everyone: Sequence[Tensor], mine: Tensor) -> Work:
        job = _Job(self._finish)
        limit = WINDOW_BYTES // mine.dtype.itemsize // (self._size + 1)

        def move(window: Tensor) -> Work:
            own, *others = window.chunk(self._size + 1)
            return self._inner.all_gather(others, own)

        for start, stop in _cuts(mine.numel(), limit):
            parts = [each[start:stop] for each in everyone]
            length = (stop - start) * (self._size + 1)
            self._add(_Piece(job, move, mine.dtype, length, mine[start:stop], parts, stop - start))
        self._advance()
        return job

    def all_to_all(self, into: Tensor, came: Sequence[int], sent: Tensor, sizes: Sequence[int], longest: int) -> Work:
        job = _Job(self._finish)
        for start, stop in _cuts(longest, WINDOW_BYTES // sent.dtype.itemsize // (2 * self._size)):
            goes = [part[start:stop] for part in sent.split(list(sizes))]
            comes = [part[start:stop] for part in into.split(list(came))]
            source, theirs, ours = torch.cat(goes), list(map(len, comes)), list(map(len, goes))
            length = source.numel() + sum(theirs)
            move = partial(_move_all, self._inner, theirs, ours)
            self._add(_Piece(job, move, sent.dtype, length, source, comes, source.numel()))
        self._advance()
        return job

    def drop(self) -> None:
        """Forget what is under way; on a GPU kernels that wait for other ranks end."""
        self._waiting.clear()
        self._moving.clear()
        self._inner.drop()
        if devices.is_gpu(self._device):
            with contextlib.suppress(RuntimeError):
                self._group.abort()
        self._group = None

    def _begin(self, tensor: Tensor, move: Callable[[Tensor], Work], *, copies_in: bool, copies_out: bool) -> Work:
        job, is_there = _Job(self._finish), devices.is_gpu(self._device) and tensor.device == self._device
        for start, stop in _cuts(tensor.numel(), WINDOW_BYTES // tensor.dtype.itemsize):
            part = tensor[start:stop]
            source, targets = part if copies_in else None, [part] if copies_out else []
            if is_there:
                source, targets = None, []
            there = part if is_there else None
            self._add(_Piece(job, move, tensor.dtype, stop - start, source, targets, there=there))
        self._advance()
        return job

    def _add(self, piece: _Piece) -> None:
        piece.job.pieces_left += 1
        self._waiting.append(piece)

    def _advance(self) -> None:
        """Let as many pieces move as there are windows for them, in order."""
        while self._waiting and len(self._moving) < _UNDER_WAY:
            there = self._waiting[0].there
            if there is not None:
                piece = self._waiting.popleft()
                self._moving.append((piece, None, piece.move(there)))
                continue
            if not self._idle:
                return
            piece, slot = self._waiting.popleft(), self._idle.pop()
            host, window = _views(slot, piece)
            with self._on_stream():  # a group of NCCL waits for what is on the current stream
                if piece.source is not None:
                    length = piece.source.numel()
                    host[:length].copy_(piece.source)
                    window[:length].copy_(host[:length], non_blocking=self._pin)
                self._moving.append((piece, slot, piece.move(window)))

    def _finish(self, job: _Job) -> None:
        """Move on until the job is done; everything begun before it is then done too."""
        while job.pieces_left:
            piece, slot, work = self._moving.popleft()
            if slot is None:
                self._await(work)
            else:
                self._empty(piece, slot, work)
                self._idle.append(slot)
            piece.job.pieces_left -= 1
            self._advance()

    def _empty(self, piece: _Piece, slot: _Slot, work: Work) -> None:
        """Wait for a window, and fill the piece's targets from it."""
        host, window = _views(slot, piece)
        with self._on_stream():
            self._await(work)
            if piece.targets:
                host[piece.targets_at :].copy_(window[piece.targets_at :], non_blocking=self._pin)
                if self._stream is not None:
                    self._stream.synchronize()
        at = piece.targets_at
        for tensor in piece.targets:
            tensor.copy_(host[at : at + tensor.numel()])
            at += tensor.numel()

    def _await(self, work: Any) -> None:
        """Nothing tells NCCL that a rank of this machine has died, so it is asked and the others are watched."""
        if self._watch is not None:
            begun = watched = time.monotonic()
            while not work.is_completed():
                now = time.monotonic()
                if now - watched > _WATCH_EVERY_S:
                    watched = now
                    self._watch()
                if now - begun > self._timeout_s:
                    raise RuntimeError(f"a window of a payload did not come within {self._timeout_s:g} s")
                time.sleep(_POLL_S)
        work.wait()

    def _on_stream(self) -> AbstractContextManager[object]:
        return devices.on_stream(self._device, self._stream)


def make_group(
    backend: Backend,
    store: dist.Store,
    rank: int,
    size: int,
    timeout_s: float,
    address: str = "",
    ports: Ports | None = None,
) -> Any:
    """A process group beside torch's default one.

    address: of this machine, where gloo listens; empty: by itself. ports: of which one is its port; None: of any.
    """
    limit = timedelta(seconds=timeout_s)
    if backend == "gloo" and not address:
        return dist.ProcessGroupGloo(store, rank, size, limit)
    if backend == "gloo":
        gloo: Any = dist.ProcessGroupGloo  # whose options are missing in torch 2.13's type stubs
        listening = gloo._Options()
        listening._devices = [gloo_device(address, ports)]
        listening._timeout, listening._threads = limit, _THREADS
        return gloo(store, rank, size, listening)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    # An error must be raised here; by default a thread of the group ends the process. Read by the constructor alone,
    # and not for DeepSpeed's group, whose every wait would block the host.
    with environment("TORCH_NCCL_BLOCKING_WAIT", "1"):
        return dist.ProcessGroupNCCL(store, rank, size, options)


def _move_all(inner: Direct, came: Sequence[int], sizes: Sequence[int], window: Tensor) -> Work:
    """An all-to-all within a window: what goes lies in front of what comes."""
    goes, comes = window.split([sum(sizes), sum(came)])
    return inner.all_to_all(comes, came, goes, sizes, 0)


def _views(slot: _Slot, piece: _Piece) -> tuple[Tensor, Tensor]:
    num_bytes = piece.length * piece.dtype.itemsize
    return slot.host[:num_bytes].view(piece.dtype), slot.device[:num_bytes].view(piece.dtype)


def _cuts(length: int, limit: int) -> Iterator[tuple[int, int]]:
    for start in range(0, length, limit):
        yield start, min(start + limit, length)
