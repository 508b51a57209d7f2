"""The ranks of one worker, which train one client together: torch's default group, and what they agree on in it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from fedtorch.comm.job.store import Store
from fedtorch.core import devices
from fedtorch.core.errors import FedtorchError, PeerError, PreflightError

_MAGIC = 0x776F_726B_6572  # "worker"
_NUMBERS = 10
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64)


class Step(IntEnum):
    """A step that a rank wants from the others of its worker."""

    ANY = 1
    """To know whether any of them says yes."""
    VERDICT = 2
    """One verdict on a client's work."""
    NUMBERS = 3
    """Everybody's numbers."""
    SEND = 4
    """To give the other one a tensor."""
    RECEIVE = 5
    """To get one."""


class Verdict(IntEnum):
    """On a client's work. Of several ranks' the smallest counts that is not FINE."""

    FINE = 0
    """It is done."""
    FAILED = 1
    """An error that the client would meet again."""
    OUT_OF_MEMORY = 2
    """Smaller micro-batches could help."""


class Way(IntEnum):
    """How a tensor goes from one rank to the other."""

    HOST = 0
    """Over gloo, from ordinary memory to ordinary memory."""
    PINNED = 1
    """Over gloo, through page-locked memory on both ranks: it comes from a GPU and will go to one."""
    DEVICE = 2
    """Over NCCL, from GPU to GPU."""

    @classmethod
    def of(cls, device: torch.device, backend: str) -> Way:
        """That of a tensor on this device, between ranks with this backend."""
        if not devices.is_gpu(device):
            return cls.HOST
        return cls.DEVICE if "nccl" in backend else cls.PINNED

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """Where such a tensor comes out on the way, flat."""
        if self is Way.DEVICE:
            return torch.empty(count, dtype=dtype, device=devices.present())
        return devices.page_locked(count, dtype) if self is Way.PINNED else torch.empty(count, dtype=dtype)


class WorkerGroup:
    """The ranks of a worker, which run the same clients in lock step; a process is in one worker at most.

    It is torch's *default* group, of these ranks alone, so that a library that trains on the whole world (DeepSpeed)
    trains on this worker. The operations here are over gloo; only tensors that are sent from a GPU may go over NCCL.

    1. Every operation begins with a row of integers from each rank. Ranks that do not do the same thing find out
       before anything is sent.
    2. A rank that fails at a client calls `agree_on_verdict` at once; the others get a PeerError in whatever they call
       next, and all ranks give the same verdict on the client.
    3. A rank that dies or leaves ends the others' operation at once, one that hangs ends it after the store's timeout;
       then the group is gone and `on_error` says which rank it was (it gets gloo's text and must raise).
    """

    ranks: tuple[int, ...]
    """Their numbers in the job."""
    rank: int
    """Place in the worker; 0 leads."""
    size: int
    """How many ranks it has."""
    backend: str
    """Of the default group, as torch names it."""

    def __init__(
        self, store: Store, ranks: Sequence[int], own: int, on_error: Callable[[str], NoReturn], backend: str = "gloo"
    ) -> None:
        if dist.is_initialized():
            raise PreflightError("torch's default group exists already; a process can be in one worker only")
        self.ranks, self.rank, self.size = tuple(ranks), list(ranks).index(own), len(ranks)
        self.backend = backend
        self._on_error = on_error
        self._sequence = 0
        self._is_open = True
        inner = dist.PrefixStore(f"worker{self.ranks[0]}", store.inner)
        limit = timedelta(seconds=store.timeout_s)
        self._guard(
            lambda: dist.init_process_group(backend, store=inner, rank=self.rank, world_size=self.size, timeout=limit)
        )

    def check(self, ranks: Sequence[int]) -> WorkerGroup:
        """This group, if it is of these ranks.

        Raises:
            PreflightError: it is not.
        """
        if self.ranks == tuple(ranks):
            return self
        raise PreflightError(
            f"rank {self.ranks[self.rank]} is in a worker of ranks {self.ranks} and cannot join {tuple(ranks)}; "
            "set system.ranks_per_worker to the same in all runs of a process"
        )

    @property
    def leads(self) -> bool:
        """Is this the worker's first rank, which speaks for it to the federation?"""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Does any rank say yes?

        Raises:
            PeerError: another rank failed at its client (so does every other operation).
        """
        return any(row[0] for row in self._agree(Step.ANY, int(flag)))

    def agree_on_verdict(self, own: Verdict) -> Verdict:
        """At the end of a client's work: all ranks' verdict. Called by every rank that did not get a PeerError."""
        return _common(self._rows(Step.VERDICT, own))

    def all_gather_floats(self, values: Sequence[float]) -> list[list[float]]:
        """Every rank's `values`, by rank; as many from each.

        Raises:
            PreflightError: they are not as many from each.
        """
        counts = [row[0] for row in self._agree(Step.NUMBERS, len(values))]
        if len(set(counts)) > 1:
            raise PreflightError(f"ranks {self.ranks} of a worker give {counts} numbers; expected as many from each")
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.zeros_like(mine) for _ in self.ranks]
        if values:
            self._guard(lambda: dist.all_gather(everyone, mine))
        return [each.tolist() for each in everyone]

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over the ranks of the worker, in place; on a device that the group's backend knows."""
        self._guard(lambda: dist.all_reduce(values))
        return values

    def all_gather(self, mine: Tensor, everyone: Tensor) -> None:
        """Write every rank's flat tensor into a row of `everyone`; as long on every rank, on a device that the group's
        backend knows.
        """
        self._guard(lambda: dist.all_gather_single(everyone.view(-1), mine))

    def send(self, tensor: Tensor, about: Sequence[int] = ()) -> None:
        """Send a tensor, and at most eight integers about it, to the other rank of a worker of two, which is to call
        `receive`; returns once it was received, over NCCL once it will be. The tensor may be on any device.
        """
        way = Way.of(tensor.device, self.backend)
        flat = tensor.detach().contiguous().view(-1)
        if way is Way.PINNED:
            flat = way.empty(flat.numel(), flat.dtype).copy_(flat)
        elif way is Way.HOST:
            flat = flat.cpu()
        self._agree(Step.SEND, _DTYPES.index(flat.dtype) + way * len(_DTYPES), flat.numel(), *about)
        if flat.numel():
            self._guard(lambda: dist.send(flat, 1 - self.rank))

    def receive(self) -> tuple[Tensor, list[int]]:
        """Receive what the other rank of a worker of two sends, flat, and eight integers about it.

        On this rank's GPU if it went from one to the other, else on the CPU.
        """
        kind, count, *about = self._agree(Step.RECEIVE)[1 - self.rank]
        way, dtype = divmod(kind, len(_DTYPES))
        flat = Way(way).empty(count, _DTYPES[dtype])
        if count:
            self._guard(lambda: dist.recv(flat, 1 - self.rank))
        return flat, about

    def close(self) -> None:
        """Close the sockets, which ends what others wait for; does nothing the second time."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # whatever is left of it
                dist.destroy_process_group()

    def _agree(self, step: Step, *numbers: int) -> list[list[int]]:
        """Every rank's numbers, once all ranks are at the same step (or one sends what the other receives)."""
        rows = self._rows(step, *numbers)
        if verdict := _common(rows):
            raise PeerError(
                "another rank of this worker failed at this client; its log has the reason",
                out_of_memory=verdict is Verdict.OUT_OF_MEMORY,
            )
        return [row for _, row in rows]

    def _rows(self, step: Step, *numbers: int) -> list[tuple[int, list[int]]]:
        if not self._is_open:
            raise FedtorchError("the group of this worker's ranks has failed or was closed; it cannot be used any more")
        self._sequence += 1
        padded = [*numbers, *[0] * (_NUMBERS - len(numbers))]
        mine = torch.tensor([_MAGIC, self._sequence, step, *padded], dtype=torch.int64)
        everyone = [torch.zeros_like(mine) for _ in self.ranks]
        self._guard(lambda: dist.all_gather(everyone, mine))
        rows = [row.tolist() for row in everyone]
        steps = {row[2] for row in rows}
        has_failed = any(row[2] == Step.VERDICT and row[3] for row in rows)
        fits = len(steps) == 1 and not steps & {Step.SEND, Step.RECEIVE}
        fits |= self.size == 2 and steps == {Step.SEND, Step.RECEIVE}
        if any(row[:2] != rows[self.rank][:2] for row in rows) or not (fits or has_failed):
            found = ", ".join(f"rank {rank}: {row[1:4]}" for rank, row in zip(self.ranks, rows, strict=True))
            raise PreflightError(f"the ranks of a worker do not run the same steps ({found}: number, step, value)")
        return [(row[2], row[3:]) for row in rows]

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
            return
        except RuntimeError as error:
            text = str(error).splitlines()[0]  # not the exception: its traceback would keep the sockets open
        self.close()
        self._on_error(re.sub(r"^\[[^]]*\] ", "", text).split(". This is typically")[0])


def _common(rows: Sequence[tuple[int, list[int]]]) -> Verdict:
    """The verdict of the ranks that gave one."""
    return Verdict(min((row[0] for step, row in rows if step == Step.VERDICT and row[0]), default=Verdict.FINE))
