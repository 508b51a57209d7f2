"""The federation's group: collectives that are agreed on before anything is sent, and errors that name a rank.

Every operation begins with a row of integers from each rank (`header`), compared by the server, and its verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedtorch.comm.job.liveness import Liveness
from fedtorch.comm.job.store import Store
from fedtorch.comm.transport.device import Backend, Staged, Staging, make_group
from fedtorch.comm.transport.digests import DAMAGED, sums_of_bits, window_digests
from fedtorch.comm.transport.header import DTYPES, MAGIC, WIDTH, Op, describe, first_difference
from fedtorch.comm.transport.machines import connect
from fedtorch.comm.transport.node_sums import NodeSums
from fedtorch.comm.transport.pieces import PIECE_BYTES
from fedtorch.comm.transport.process_group import Came, Direct, Transfer, Transport, Work, ignored
from fedtorch.comm.transport.shared import Shared
from fedtorch.comm.transport.windows import windows
from fedtorch.core.errors import FedtorchError, PreflightError

Result = TypeVar("Result")


class Group:
    """Collectives over ranks of the job on flat tensors; created at the first use, unusable after the first error.

    Numbers (what is agreed on, requested, reported) go over the links between the server and the workers; payloads
    (weights, updates, sums) over gloo, or by a group of their own. Ranks are named by their number in the job.
    """

    rank: int
    """This rank."""
    members: tuple[int, ...]
    """The ranks that take part, the server first; `size` is how many they are."""
    size: int
    sequence: int
    """Operations so far; the same on all members."""
    is_broken: bool
    """Whether the sockets are closed, after an error or at the end."""

    def __init__(
        self,
        store: Store,
        liveness: Liveness,
        on_error: Callable[[str], NoReturn],
        *,
        members: Sequence[int] | None = None,
        generation: int = 0,
    ) -> None:
        """Connects nothing yet.

        on_error: called with the text of what failed, must raise an error that says which rank failed. By then the
            group is dropped: that closes its sockets, which frees ranks that wait for this one.
        members: None: all ranks. generation: how many groups this job had before, equal on all members.
        """
        self.rank = liveness.rank
        self.members = tuple(range(liveness.size)) if members is None else tuple(members)
        self.size, self.generation, self._place = len(self.members), generation, self.members.index(self.rank)
        self.sequence, self.is_broken = 0, False
        self.store, self.liveness, self.on_error = store, liveness, on_error
        self._staging: Staging | None = None
        self._left_to_send, self._transfers = 0, set[Transfer]()
        self._sockets: Direct | None = None
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
        expected: Sequence[int] | None = None,
    ) -> list[int]:
        """Enter an operation: all ranks must be at the same one, for the same round, length and dtype.

        problem: 0, or `Problem` and client index by `problem_of`; any rank's problem stops all ranks.
        num_bytes: of the payload that this rank has; the one number that may differ. More than that is not sent.
        expected: on the server, every member's `num_bytes`; None: anything.
        Returns on the server every member's `num_bytes`; elsewhere the server's alone.

        Raises:
            PreflightError: on all ranks; names the rank, what differs and both values.
        """
        self._begin(op, round)
        compared = (MAGIC, op, self.sequence, round, length, DTYPES.index(dtype), problem)
        mine = torch.tensor([*compared, num_bytes], dtype=torch.int64)
        rows = [row.tolist() for row in self.gather_numbers(mine)]
        verdict = torch.zeros(WIDTH + 4, dtype=torch.int64)
        if self.rank == 0:
            verdict[:] = torch.tensor([*mine.tolist(), *first_difference(rows, expected)])
        self.broadcast_numbers(verdict)
        servers, (rank, place, theirs, instead_of) = verdict[:WIDTH].tolist(), verdict[WIDTH:].tolist()
        if rank >= 0:
            self.drop()
            raise PreflightError(describe(self.members[rank], place, theirs, instead_of, servers))
        self._end_of_header(num_bytes)
        return [row[-1] for row in (rows if self.rank == 0 else [servers])]

    def enter(self, op: Op) -> None:
        """Enter an operation of payload alone, on which all members have agreed when they met."""
        self._begin(op, 0)
        self._end_of_header(0)

    def _begin(self, op: Op, round: int) -> None:
        self.sequence += 1
        doing: dict[str, Any] = {"round": round} if round else {}  # a broadcast has none; keep the last
        if op is not Op.EARLY:  # of which a thread takes care, while the rank does something else
            self.liveness.beat(phase=op.name.lower(), client="", **doing)

    def _end_of_header(self, num_bytes: int) -> None:
        self._left_to_send = num_bytes
        self.connect()

    def connect(self) -> None:
        """Let payloads have their way, if they have none yet; all members call it alike."""
        self._check()
        if self._payload is None:
            self._guard(self._connect_payload)

    def broadcast_numbers(self, numbers: Tensor) -> None:
        """Copy the server's numbers into all others'; their count and dtype must be known."""
        if self.rank:
            self.hear(numbers, 0)
        for rank in self.members[1:] if self.rank == 0 else ():
            self.say(numbers, rank)

    def broadcast(self, tensor: Tensor, came: Came = ignored) -> None:
        """Copy the server's payload into all others' `tensor`; its length and dtype must be agreed on.

        Digests are those of the server's kind: computed on its device, where the payload lies there. came: told of what
        is there while the rest is under way; on the server, which has all of it, while it is sent.

        Raises:
            PreflightError: on a rank where something else came.
        """
        transfer = self._start(lambda: self._payloads.broadcast(tensor, came if self.rank else ignored))
        head, count = [int(tensor.device.type != "cpu")], len(list(windows(tensor.numel())))
        if self.rank == 0:  # while it is sent
            head += sums_of_bits(tensor) if head[0] else window_digests(tensor)
            came(tensor.numel())
        self.wait(transfer)
        if self.rank:
            came(tensor.numel())
        self._let_server_go_first(tensor.nbytes)
        told = torch.tensor(head if self.rank == 0 else [0] * (count + 1), dtype=torch.int64)
        self.broadcast_numbers(told)
        if self.rank:
            is_there, *sent = told.tolist()
            self.see_whole(0, sent == (sums_of_bits(tensor) if is_there else window_digests(tensor.cpu())))

    def all_gather(self, everyone: list[Tensor], mine: Tensor) -> None:
        """Every rank's `mine` into `everyone` on every rank; all of one length and dtype, which must be agreed on.

        Raises:
            PreflightError: on a rank where something else came.
        """
        transfer = self._start(lambda: self._payloads.all_gather(everyone, mine))
        digests = window_digests(mine)
        self.wait(transfer)
        for rank, (came, sent) in enumerate(zip(everyone, self.all_gather_numbers(digests), strict=True)):
            self.see_whole(rank, window_digests(came) == sent)

    def start_reduce(self, tensor: Tensor) -> Transfer:
        """Begin to add all ranks' tensors into the server's; the others' may be overwritten."""
        self._count_sent(tensor)
        return self._start(lambda: self._payloads.reduce(tensor))

    def start_send(self, tensor: Tensor) -> Transfer:
        """Begin to send a payload to the server."""
        self._count_sent(tensor)
        return self._start(lambda: self._payloads.send(tensor, 0))

    def send_numbers(self, numbers: Sequence[int]) -> None:
        """Send the server what it receives by `receive_numbers`, which has to know their count."""
        self.say(torch.tensor(numbers, dtype=torch.int64), 0)

    def receive_numbers(self, count: int, rank: int) -> list[int]:
        """On the server: what `rank` sends by `send_numbers`."""
        return self.hear(torch.zeros(count, dtype=torch.int64), rank).tolist()

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every member's numbers, as many on each, on all of them."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        everyone = torch.zeros(self.size, len(mine), dtype=torch.int64)
        if self.rank == 0:
            everyone[:] = torch.stack(self.gather_numbers(mine))
        else:
            self.gather_numbers(mine)
        self.broadcast_numbers(everyone)
        return everyone.tolist()

    def gather_numbers(self, mine: Tensor) -> list[Tensor]:
        """On the server every member's numbers, as many of each; elsewhere []."""
        if self.rank:
            self.say(mine, 0)
            return []
        return [mine, *(self.hear(torch.zeros_like(mine), rank) for rank in self.members[1:])]

    def say(self, numbers: Tensor, rank: int) -> None:
        """Send numbers from or to the server, which `hear` takes on the other side; nothing, if there are none."""
        if numbers.numel():
            self._check()
            self.liveness.links.send(rank, self._topic, numbers.contiguous().numpy().tobytes())

    def hear(self, numbers: Tensor, rank: int) -> Tensor:
        """Take what the rank says, as many numbers of that dtype; written there and returned."""

        def take() -> None:
            data = self.liveness.links.take(self._topic, rank, self.liveness.timeout_s)
            if len(data) != numbers.nbytes:
                raise RuntimeError(f"rank {rank} sent {len(data)} bytes of numbers in place of {numbers.nbytes}")
            numbers.copy_(torch.frombuffer(bytearray(data), dtype=numbers.dtype).view(numbers.shape))

        if numbers.numel():
            self._check()
            self._guard(take)
        return numbers

    def start_receive(self, tensor: Tensor, rank: int) -> Transfer:
        """Begin to receive what `rank` sends next; in the order of these calls."""
        return self._start(lambda: self._payloads.receive(tensor, self.members.index(rank)))

    def begin(self, start: Callable[[Any], Work], *, over_sockets: bool = False) -> Transfer:
        """Begin something else on the transport of payloads, or on gloo's sockets."""
        return self._start(lambda: start(self._gloo() if over_sockets else self._payloads))

    def wait(self, transfer: Transfer) -> Any:
        """Wait for something that was started; what waiting for its work gives."""
        found = self._guard(lambda: transfer.work.wait())  # not the method: this frame would hold it, see Transfer
        transfer.work = None
        self._transfers.discard(transfer)
        return found

    def drop(self) -> None:
        """Close the sockets; operations raise from now on."""
        if not self.is_broken:
            self.liveness.links.end(self._topic)
        self.is_broken = True
        for transfer in tuple(self._transfers):  # another thread's too, see `early`
            transfer.work = None
        self._transfers.clear()
        for transport in (self._payload, self._sockets):
            if transport is not None:
                transport.drop()
        self._payload = self._sockets = None

    def see_whole(self, place: int, is_whole: bool) -> None:
        """Raises PreflightError: what came from the member is not what it sent."""
        if not is_whole:
            self.drop()
            raise PreflightError(f"a payload of rank {self.members[place]} {DAMAGED} at rank {self.rank}")

    def _let_server_go_first(self, num_bytes: int) -> None:
        """Between machines: wait for what follows a long payload; the server is alive meanwhile.

        Whoever has all of it would else wait with a time limit while a slow wire still brings the payload to others.
        """
        if self.rank == 0 or not self.store.spans_hosts or num_bytes <= PIECE_BYTES:
            return

        def watch() -> None:
            while not self.liveness.links.wait(self._topic, [0], min(1.0, self.liveness.timeout_s / 4)):
                self._watch()

        self._guard(watch)

    def _count_sent(self, tensor: Tensor) -> None:
        """Raises PreflightError: this rank was about to send more than it announced; nothing of it is sent."""
        self._left_to_send -= tensor.nbytes
        if self._left_to_send < 0:
            self.drop()
            raise PreflightError(
                f"rank {self.rank} was about to send {-self._left_to_send} bytes more than it announced"
            )

    @property
    def machines(self) -> tuple[int, ...] | None:
        """Machine of each member, where one rank of each exchanges with the others; None: every rank does."""
        return self._payload.machines if isinstance(self._payload, NodeSums) else None

    @property
    def device(self) -> torch.device | None:
        """Device from which every rank's whole payloads move as they lie there; None: there is none, or not yet."""
        staging = self._staging if isinstance(self._payload, Staged) else None
        return None if staging is None or staging.backend != "nccl" else staging.device

    @property
    def shares_memory(self) -> bool:
        """Are all members on one machine, and exchange through memory?"""
        return isinstance(self._payload, Shared)

    @property
    def _payloads(self) -> Transport:
        assert self._payload is not None, "payloads are sent once all ranks have agreed on them"
        return self._payload

    @property
    def _topic(self) -> str:
        return f"numbers{self.generation}"

    def _check(self) -> None:
        if self.is_broken:
            raise FedtorchError("this communicator has failed or was closed; it cannot be used any more")

    def _start(self, start: Callable[[], Work]) -> Transfer:
        self._check()
        transfer = Transfer(self._guard(start))
        self._transfers.add(transfer)
        return transfer

    def _gloo(self) -> Direct:
        if self._sockets is None:
            self._sockets = Direct(self.connector("gloo", "", self._place, self.size)())
        return self._sockets

    def _connect_payload(self) -> None:
        """All ranks come here together: gloo connects each of them to all others."""
        cuts = self.store.spans_hosts
        wanted = self.store.shares_memory and not (self._staging is not None and self._staging.resident)
        there = self._gloo(), self._place, self.size, lambda *some: self.connector("gloo", *some)(), self.liveness.beat
        staged = None if self._staging is None else partial(self._connect_staged, self._staging)
        self._payload = connect(*there, wanted=wanted, in_pieces=cuts, staged=staged)

    def _connect_staged(self, staging: Staging, name: str, place: int, size: int) -> Staged:
        group = self.connector(staging.backend, name, place, size)()
        watch = None
        if staging.backend == "nccl":
            watch = self._watch
            group.eager_connect_single_device(staging.device)  # now; else a first send waits for its peer to connect
        return Staged(group, staging.device, pin=staging.pin, timeout_s=self.liveness.timeout_s, watch=watch)

    def connector(self, backend: Backend, name: str, place: int, size: int) -> Callable[[], Any]:
        """Makes a process group of `size` members, of which this is the one at `place`; they come with the same name.

        It may be called by another thread.
        """
        store = self.store.inner
        if backend == "nccl":
            store = store.clone()  # type: ignore[attr-defined]  # its own: threads of NCCL may wait in it
        # by generation: a broken group's addresses must not be found again
        prefixed = dist.PrefixStore(f"federation{self.generation or ''}{name}", store)
        how = place, size, self.liveness.timeout_s, self.store.address, self.store.ports
        return partial(make_group, backend, prefixed, *how)

    def _watch(self) -> None:
        """While this rank waits for a payload.

        Raises:
            RuntimeError: another member has left or is dead, or its collective has failed.
        """
        self.liveness.beat()
        if lost := self.liveness.missing([rank for rank in self.members if rank != self.rank]):
            raise RuntimeError(f"rank {lost[0]} is gone or silent, and a payload is under way")
        if len(self.liveness.unaccounted()) < len(self.liveness.others):
            raise RuntimeError("another rank's collective has failed, and a payload is under way")

    def _guard(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except RuntimeError as error:
            # not the exception: a live traceback keeps the sockets open, and every other rank waits out its timeout
            text = str(error).splitlines()[0]
        self.drop()
        # "[file:line] Connection closed by peer [...]. This is typically ..."
        self.on_error(re.sub(r"^\[[^]]*\] ", "", text).split(". This is typically")[0])
