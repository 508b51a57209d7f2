"""The federation's group: collectives that are agreed on before anything is sent, and errors that name a rank.

gloo reads a message of another length or dtype as garbage with exit code 0, or aborts the process (*measured*, torch
2.13). So every operation begins with a row of integers from each rank, compared by the server, and its verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from fedtorch.comm.liveness import Liveness
from fedtorch.comm.store import Store
from fedtorch.comm.transport import Backend, Direct, Moving, Staged, Staging, Transport, make_group
from fedtorch.core.errors import FedtorchError, PreflightError

_MAGIC = 0x6665_6474_6F72_6368  # "fedtorch"
DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)


class Op(IntEnum):
    """What an operation is."""

    BROADCAST, GATHER, SHARE, AGGREGATE, REDUCE, SUMS, SEND, ONE, DONE, ABORT, ALL = range(1, 12)


class Problem(IntEnum):
    """Why a rank cannot take part in an operation that it was asked for."""

    NONE, MISSING, MISFIT, UNREADABLE = range(4)


_COMPARED = ("magic", "operation", "sequence", "round", "length", "dtype", "problem")
_WIDTH = len(_COMPARED) + 1


class Transfer:
    """Something under way; the group can let go of it, which a list of works in some live frame would prevent."""

    work: Any = None


class Group:
    """Collectives over ranks of the job on CPU tensors; created at the first use, unusable after the first error.

    Numbers (what is agreed on, announced, reported) go over gloo; payloads (weights, updates, sums) too, or by a group
    of their own.

    members: the ranks that take part, the server first; None: all. Ranks are named by their number in the job.
    generation: how many groups this job had before, equal on all members.
    on_error: called with the text of what failed, must raise an error that says who is to blame.
    At that time the group is already dropped: that closes its sockets, which frees ranks that wait for this one.
    """

    def __init__(
        self,
        store: Store,
        liveness: Liveness,
        on_error: Callable[[str], NoReturn],
        *,
        members: Sequence[int] | None = None,
        generation: int = 0,
    ) -> None:
        self.rank = liveness.rank
        self.members = tuple(range(liveness.size)) if members is None else tuple(members)
        self.size = len(self.members)
        self._generation = generation
        self.sequence = 0
        self.is_broken = False
        self._store, self._liveness, self._on_error = store, liveness, on_error
        self._staging: Staging | None = None
        self._transfers: set[Transfer] = set()
        self._numbers: Direct | None = None
        self._payload: Transport | None = None

    def stage(self, staging: Staging | None) -> None:
        """How payloads travel, None: over gloo as they are; said before the first one, by all members alike."""
        self._staging = staging

    def agree(
        self,
        op: Op,
        *,
        round: int,
        length: int = 0,
        dtype: torch.dtype = torch.float32,
        problem: int = 0,
        num_bytes: int = 0,
    ) -> list[int]:
        """Enter an operation: all ranks must be at the same one, for the same round, length and dtype.

        problem: 0, or `Problem` and client index by `problem_of`; any rank's problem stops all ranks.
        num_bytes: of the payload that this rank has; the one number that may differ.
        Returns on the server every member's `num_bytes`; elsewhere the server's alone.

        Raises:
            PreflightError: on all ranks; names the rank, what differs and both values.
        """
        self.sequence += 1
        doing: dict[str, Any] = {"round": round} if round else {}  # a broadcast has none; keep the last
        self._liveness.beat(phase=op.name.lower(), client="", **doing)
        compared = (_MAGIC, op, self.sequence, round, length, DTYPES.index(dtype), problem)
        mine = torch.tensor([*compared, num_bytes], dtype=torch.int64)
        rows = self._gather_rows(mine)
        verdict = torch.zeros(_WIDTH + 3, dtype=torch.int64)
        if self.rank == 0:
            verdict[:_WIDTH] = mine
            verdict[_WIDTH:] = torch.tensor(_difference(rows))
        self.tell(verdict)
        servers, (rank, place, theirs) = verdict[:_WIDTH].tolist(), verdict[_WIDTH:].tolist()
        if rank >= 0:
            self.drop()
            raise PreflightError(_describe(self.members[rank], place, theirs, servers))
        if self._payload is None:
            self._guard(self._connect_payload)
        return [row[-1] for row in (rows if self.rank == 0 else [servers])]

    def tell(self, numbers: Tensor) -> None:
        """Copy the server's numbers into all others'; their count and dtype must be known."""
        self.wait(self._start(lambda: self._over_gloo().broadcast(numbers)))

    def collect(self, data: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """On the server every member's `data`, bytes of numbers; elsewhere []. sizes: on the server, of all members."""
        if self.rank:
            if len(data):
                self.wait(self._start(lambda: self._over_gloo().send(data, 0)))
            return []
        buffers = [data, *(torch.zeros(size, dtype=torch.uint8) for size in sizes[1:])]

        def receive(place: int) -> Transfer:
            return self._start(lambda: self._over_gloo().receive(buffers[place], place))

        for transfer in [receive(place) for place, buffer in enumerate(buffers) if place and len(buffer)]:
            self.wait(transfer)
        return buffers

    def broadcast(self, tensor: Tensor) -> None:
        """Copy the server's payload into all others' `tensor`; its length and dtype must be agreed on."""
        self.wait(self._start(lambda: self._moves.broadcast(tensor)))

    def all_gather(self, everyone: list[Tensor], mine: Tensor) -> None:
        """Every rank's `mine` into `everyone` on every rank; all of one length and dtype, which must be agreed on."""
        self.wait(self._start(lambda: self._moves.all_gather(everyone, mine)))

    def start_reduce(self, tensor: Tensor) -> Transfer:
        """Begin to add all ranks' tensors into the server's; the others' may be overwritten."""
        return self._start(lambda: self._moves.reduce(tensor))

    def start_send(self, tensor: Tensor) -> Transfer:
        """Begin to send a payload to the server."""
        return self._start(lambda: self._moves.send(tensor, 0))

    def start_receive(self, tensor: Tensor, rank: int) -> Transfer:
        """Begin to receive what `rank` sends next; in the order of these calls."""
        return self._start(lambda: self._moves.receive(tensor, self.members.index(rank)))

    def wait(self, transfer: Transfer) -> None:
        """Wait for something that was started."""
        self._guard(lambda: transfer.work.wait())
        transfer.work = None
        self._transfers.discard(transfer)

    def drop(self) -> None:
        """Close the sockets; operations raise from now on."""
        self.is_broken = True
        for transfer in self._transfers:
            transfer.work = None
        self._transfers.clear()
        for transport in (self._payload, self._numbers):
            if transport is not None:
                transport.drop()
        self._payload = self._numbers = None

    def _gather_rows(self, mine: Tensor) -> list[list[int]]:
        received = [torch.zeros_like(mine) for _ in range(self.size)] if self.rank == 0 else []
        self.wait(self._start(lambda: self._over_gloo().gather(received, mine)))
        return [row.tolist() for row in received]

    @property
    def _moves(self) -> Transport:
        assert self._payload is not None, "payloads move once all ranks have agreed on them"
        return self._payload

    def _start(self, start: Callable[[], Moving]) -> Transfer:
        if self.is_broken:
            raise FedtorchError("this communicator has failed or was closed; it cannot be used any more")
        transfer = Transfer()

        def begin() -> None:
            transfer.work = start()

        self._guard(begin)
        self._transfers.add(transfer)
        return transfer

    def _over_gloo(self) -> Direct:
        if self._numbers is None:
            self._numbers = Direct(self._connect("gloo", f"federation{self._generation or ''}", self._store.inner))
        return self._numbers

    def _connect_payload(self) -> None:
        """All ranks come here together: gloo connects each of them to all others."""
        staging, self._payload = self._staging, self._over_gloo()
        if staging is None:
            return
        # A connection of its own: threads of NCCL use the store too, and one may wait in it.
        store = self._store.inner.clone()  # type: ignore[attr-defined]
        group = self._connect(staging.backend, f"federation{self._generation or ''}/payload", store)
        watch = self._watch if staging.backend == "nccl" else None
        limit_s = self._liveness.timeout_s
        self._payload = Staged(group, staging.device, pin=staging.pin, timeout_s=limit_s, watch=watch)

    def _connect(self, backend: Backend, name: str, store: dist.Store) -> Any:
        # by generation: a broken group's addresses must not be found again
        prefixed = dist.PrefixStore(name, store)
        return make_group(backend, prefixed, self.members.index(self.rank), self.size, self._liveness.timeout_s)

    def _watch(self) -> None:
        """While this rank waits for a payload.

        Raises:
            RuntimeError: another member has left or is dead, or its collective has failed.
        """
        self._liveness.beat()
        if lost := self._liveness.missing([rank for rank in self.members if rank != self.rank]):
            raise RuntimeError(f"rank {lost[0]} is gone or silent, and a payload is under way")
        if len(self._liveness.unheard()) < len(self._liveness.others):
            raise RuntimeError("another rank's collective has failed, and a payload is under way")

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
            return
        except RuntimeError as error:
            # The text, not the exception: a live traceback keeps the sockets open, and every other rank then waits
            # out its timeout.
            text = str(error).splitlines()[0]
        self.drop()
        # "[file:line] Connection closed by peer [...]. This is typically ..."
        self._on_error(re.sub(r"^\[[^]]*\] ", "", text).split(". This is typically")[0])


def problem_of(problem: Problem, client: int) -> int:
    """A problem with a client as one integer."""
    return problem << 32 | client if problem else 0


def _difference(rows: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """(row, place, value) of the first value that differs from the server's or is a problem; row −1 if none."""
    for rank, row in enumerate(rows):
        for place, name in enumerate(_COMPARED):
            if row[place] != (0 if name == "problem" else rows[0][place]):
                return rank, place, row[place]
    return -1, 0, 0


def _describe(rank: int, place: int, theirs: int, servers: Sequence[int]) -> str:
    row = dict(zip(_COMPARED, servers, strict=False))
    step = f"in {_name('operation', row['operation'])} of round {row['round']} (operation {row['sequence']})"
    field = _COMPARED[place]
    if field == "problem":
        what = {
            Problem.MISSING: "does not hold the update of a client it reported",
            Problem.MISFIT: "holds an update of another length or dtype than agreed",
            Problem.UNREADABLE: "cannot read back the update of a client",
        }[Problem(theirs >> 32)]
        return f"{step} rank {rank} {what}: client index {theirs & 0xFFFFFFFF}"
    return (
        f"{step} rank {rank} has {field} {_name(field, theirs)}, the server has {field} {_name(field, row[field])}: "
        f"the ranks do not run the same steps on the same model"
    )


def _name(field: str, value: int) -> str:
    if field == "operation" and value in list(Op):
        return Op(value).name.lower()
    if field == "dtype" and 0 <= value < len(DTYPES):
        return str(DTYPES[value])
    return str(value)
