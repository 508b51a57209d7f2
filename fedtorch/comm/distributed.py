"""The communicator of many processes: numbers and small decisions through the store, tensors through gloo."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import IO, Any, NoReturn

import torch
from torch import Tensor
from typing_extensions import Self

from fedtorch.comm import mail
from fedtorch.comm.base import Answer, Communicator, Met, nothing
from fedtorch.comm.job.addresses import bind, check_master
from fedtorch.comm.job.event_log import SharedEventLog
from fedtorch.comm.job.links import Links
from fedtorch.comm.job.liveness import Liveness
from fedtorch.comm.job.parties import Identity
from fedtorch.comm.job.rejoin import join_job, let_in, waiting
from fedtorch.comm.job.rendezvous import Rendezvous
from fedtorch.comm.job.shutdown import Shutdown
from fedtorch.comm.job.store import JobMember
from fedtorch.comm.job.transcript import Transcript, nonces_in
from fedtorch.comm.options import CommOptions, Network
from fedtorch.comm.sparse.messages import all_gather_updates, count_replicated
from fedtorch.comm.sparse.peers import GroupPeers
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.aggregation import Aggregation, Request, Term
from fedtorch.comm.sums.early import Early
from fedtorch.comm.sums.early_sides import begin_early
from fedtorch.comm.sums.local_updates import answer_requests
from fedtorch.comm.sums.server_updates import DistributedUpdates
from fedtorch.comm.sums.sum_ways import Exchange
from fedtorch.comm.transport.backend import Choice, OwnGpu, choose
from fedtorch.comm.transport.device import Staging
from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.mapped_vector import MappedVector
from fedtorch.comm.transport.process_group import Came, ignored
from fedtorch.comm.transport.trial import problem_of
from fedtorch.comm.transport.update_memory import UpdateMemory
from fedtorch.comm.wire import Packet
from fedtorch.comm.worker import WorkerGroup
from fedtorch.core.devices import BACKENDS
from fedtorch.core.errors import CollectiveFailed, DeadlineError, PreflightError, RefusedUpdatesError
from fedtorch.core.update import Report, UpdateBuffer

log = logging.getLogger(__name__)

_TRIAL = "nccl/failed"  # note of a rank whose first sum over NCCL failed
_PATIENCE = 5  # collectives in a row that may fail though nobody is lost


class DistributedCommunicator(Communicator):
    """One rank of a job that torchrun, srun or a test has started; made by `join`.

    Its group is an object of its own, beside torch's default one, and created at the first collective, after
    `preflight`, which decides on the backend of payloads (gloo without it). All methods are for the thread that joined.
    """

    staging: Staging | None
    """How payloads travel; None: over gloo as they are."""
    member: JobMember

    def __init__(self, names: Sequence[str], member: JobMember, options: CommOptions) -> None:
        super().__init__(names)
        store, self.rank, self.size = member.store, member.rank, member.size
        self._store, self._options, self.events = store, options, SharedEventLog(store)
        self.staging, self._groups, self._failures, self._is_closed, self._recovers = None, 0, 0, False, False
        self._transcript = Transcript.of(store, self.rank)
        us = options.links, self.rank, self.size, store.timeout_s  # and a copy, good before and after parties sign
        self._liveness = Liveness(copy.copy(store), *us, options.stacks, sees_ends=options.recovers)
        self.member, self.lost, self.has_ended = member, member.entry.lost, member.entry.is_over
        self.vector = MappedVector(lambda: self._group, lambda: store.shares_memory)
        self.memory = UpdateMemory(lambda: store.shares_memory and self.size > 1 and self.staging is None)
        self._liveness.forget(self.lost)
        self._rendezvous = Rendezvous(store, options.links, self._liveness)
        about = self._rendezvous, member.hosts_store, options.grace_s
        self._shutdown = Shutdown(store, self._liveness, *about, self._drop)
        self._group = self._make_group()
        self._places: dict[str, tuple[int, int]] = {}  # on the server: client -> (index, rank) of the last reports
        self._worker: WorkerGroup | None = None
        self._agreed = self._sworn = ""  # the broadcast on which all ranks agreed when they met; what they swore to
        self._early: Early | None = None
        self._shared: frozenset[int] | None = None  # ranks without a GPU of their own; None: not known
        self._liveness.beat()
        self.faults("init")

    @classmethod
    def join(
        cls,
        names: Sequence[str],
        timeout_s: float = 600.0,
        exchange: Exchange = "auto",
        stacks: IO[str] | None = None,
        *,
        recovers: bool = False,
        backend: Choice = "auto",
        device: torch.device | None = None,
        secret: str | Identity = "",
        grace_s: float = CommOptions.grace_s,
        network: Network | None = None,
        member: JobMember | None = None,
    ) -> Self:
        """Join the job that the environment describes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_…).

        timeout_s: how long any rank may be silent. exchange: how weighted sums travel; the result is the same.
        stacks: an open file for the stacks of this rank's threads, should it hang or crash. grace_s: of `CommOptions`.
        recovers: after `enable_loss_recovery`, go on without workers that are lost, which NCCL cannot.
        backend: of payloads. device: this rank's own; None: the CPU. secret: `signing.job_secret`, or who this party is
        among parties with keys of their own. member: `reopen`.

        Raises:
            PreflightError: incomplete environment, taken port, no store, or hosts that do not reach each other.
        """
        network = network or Network()
        check_master(os.environ, trusts=network.trusted)
        member = member or join_job(os.environ, timeout_s, secret, network.start_s, network.why_no_return, network.who)
        member.store.ports = network.ports
        links = Links.open(member.store, member.rank, os.environ["MASTER_ADDR"], probes=recovers)
        backend, own = "gloo" if recovers else backend, device or torch.device("cpu")
        joined = cls(names, member, CommOptions(links, recovers, exchange, stacks, backend, own, grace_s))
        joined._liveness.labels, member.store.shares_memory = network.labels(member.entry.hosts), network.shares_memory
        with ExitStack() as left:
            left.push(joined)  # which tells the others of an error
            at = network.interface, member.entry.hosts
            joined.hosts = bind(member.store, joined._rendezvous, *at, trusts=network.trusted)
            left.pop_all()
        joined._liveness.labels = network.labels(joined.hosts)
        return joined

    def reopen(self) -> JobMember:
        """Leave this attempt together, and be let in to the next one."""
        self._is_closed = True
        self._shutdown.leave_together(is_broken=self._group.is_broken, comes_again=True)
        return let_in(self.member, self._words, self.lost - self.returned, self.hosts)

    def preflight(self, facts: Mapping[str, str], *, crosses: str = "") -> None:
        """Compare facts through the store. That NCCL is wanted and a rank has no GPU of its own is an error."""
        self._liveness.beat(phase="preflight")
        self.faults("preflight")
        paper, gpu = self._transcript, OwnGpu.of(self._options.device).note()
        facts = {**facts, **paper.facts} if paper else facts

        def decide(notes: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
            self.gpus = {rank: note["gpu_versions"] for rank, note in notes.items() if note["gpu_versions"]}
            return {**choose(self._options.backend, notes, crosses), **nonces_in(notes)}

        verdict = self._rendezvous.preflight(facts, {**gpu, **paper.note} if paper else gpu, decide)
        if paper:
            paper.sign(self._rendezvous, facts, verdict, self.lost)
        if self._shared is None:  # else by an earlier run of this job
            fails = verdict["backend"] == "nccl" and not self._try_nccl(resident=not crosses)
            self._shared = frozenset(range(self.size) if fails else verdict["shared"])

    def _try_nccl(self, *, resident: bool) -> bool:
        """Let payloads go over NCCL if a first sum comes on all ranks; False: they go over gloo, as `auto` allows.

        Raises:
            PreflightError: it does not come, and `nccl` is wanted.
        """
        device = self._options.device
        connect = self._group.connector("nccl", "/trial", self.rank, self.size)
        if problem := problem_of(connect, device, self._liveness.beat, self._where_trial_failed):
            if not self._where_trial_failed():  # else it failed there first
                self._store.set(_TRIAL, f"rank {self.rank}")
            log.warning("a first sum from GPU to GPU over NCCL failed on rank %d: %s", self.rank, problem)
        if self._rendezvous.barrier("trial of nccl", 0, ok=not problem)[0]["ok"]:
            self.stage(Staging("nccl", device, pin=True, resident=resident))
            return True
        if self._options.backend == "nccl":
            raise PreflightError(
                "system.backend is nccl but a first sum from GPU to GPU failed; the logs of the ranks say on which of "
                f"them{f', here: {problem}' if problem else ''}. Mend that, or set system.backend to auto or gloo"
            )
        if self.is_server:
            log.warning("payloads go over gloo, through the CPU's memory, which is slower")
        return False

    def _where_trial_failed(self) -> str:
        return self._store.get(_TRIAL, by=None) if self._store.has([_TRIAL]) else ""

    def stage(self, staging: Staging) -> None:
        """From now on payloads travel like this; all ranks call it alike, before the first one is sent."""
        self.staging = staging
        self._group.stage(staging)

    def meet(
        self,
        phase: str,
        *,
        round: int,
        messages: Sequence[Packet] = (),
        answer: Answer = nothing,
        stop: bool = False,
        may_reopen: bool = False,
        vector: Tensor | None = None,
        oath: str = "",
    ) -> Met:
        """Meet over the links; no collective is under way meanwhile. Remembers who reported whom."""
        self._liveness.beat(phase=f"wait for {phase}", round=round, client="", step=0)
        words = waiting(self._store, self.lost) if self.is_server and may_reopen else {}
        sequence, num_clients = self._rendezvous.next, len(self.names)
        mine = mail.Mail(self.meter, self.rank, round=round, sequence=sequence, num_clients=num_clients)
        self._agreed = "" if vector is None else self._next_broadcast(vector)
        found, gathered = list[tuple[int, Packet]](), list[Packet]()
        sworn = self._transcript.oath(f"{phase}/{sequence}", oath) if self._transcript and oath else None

        def on_server(came: Mapping[int, bytes]) -> bytes:
            found.extend(mine.gathered(sworn.taken_from(came) if sworn else came))
            gathered.extend(self._sorted([message for _, message in found]))
            answered = mine.answer(answer(gathered), len(came) - 1)
            return sworn.with_answer(answered) if sworn else answered

        note: dict[str, Any] = {"stop": stop, "returned": list(words), "then": self._agreed, "answer": on_server}
        mailed = sworn.with_mail(mine.pack(messages)) if sworn else mine.pack(messages)
        verdict, answered = self._rendezvous.barrier(phase, round, **note, allow_loss=self._recovers, mail=mailed)
        if sworn and not verdict["stop"]:
            answered, self._sworn = sworn.checked(answered, away={*self.lost, *verdict["lost"]}), oath
            self.sworn = tuple(sworn.texts)
        if may_reopen:  # until then all that is saved is met for too
            self._words, self.returned = words, frozenset(verdict["returned"])
        self.stops = bool(verdict["stop"])
        self._regroup(verdict["lost"])
        reported = {self.names[m.client]: (m.client, rank) for rank, m in found if m.kind == "report" and m.client >= 0}
        self._places = reported or self._places
        return Met(gathered, mine.answered(answered))

    @property
    def party(self) -> str:
        """As the base class says."""
        return self._transcript.party if self._transcript else ""

    def begin_checks(self, **kinds: bool) -> None:
        """Draw the key of the silos, as the base class says."""
        if self._transcript is not None and self.witness is None:
            self.witness = self._transcript.witness(self._rendezvous, self.lost, **kinds)

    def refuse(self, told: str, code: int) -> None:
        """As the base class says."""
        self._rendezvous.refuse(told, code)

    def enable_loss_recovery(self) -> None:
        """Go on without lost workers; where `join` was not told `recovers` nothing changes."""
        self._recovers = self._options.recovers

    def missing(self) -> list[int]:
        """Look at the others' heartbeats."""
        return self._liveness.spared(self._recovers)

    def commit_collective(self, is_done: bool, *, phase: str, round: int) -> bool:
        """Find out who is lost; DeadlineError if collectives fail again and again: the network is at fault."""
        if not self._recovers:
            return is_done
        verdict, _ = self._rendezvous.barrier(f"after {phase}", round, ok=is_done, allow_loss=True)
        is_done = bool(verdict["ok"])
        self._failures = 0 if is_done or verdict["lost"] else self._failures + 1
        if self._failures == _PATIENCE:
            raise DeadlineError(f"phase {phase} of round {round} failed {_PATIENCE} times though every rank is alive")
        self._regroup(verdict["lost"], is_broken=not is_done)
        return is_done

    def _regroup(self, lost: Mapping[int, str], *, is_broken: bool = False) -> None:
        """Go on without the ranks in `lost`: the others form a new group at their next collective."""
        for rank, why in lost.items():
            log.warning("going on without rank %d: %s", rank, why)
        if lost or is_broken:
            self._liveness.forget(lost)
            self.lost |= lost.keys()
            self._group.drop()
            self._groups += 1
            self._group = self._make_group()

    def _make_group(self) -> Group:
        members = sorted([self.rank, *self._liveness.others])
        group = Group(self._store, self._liveness, self._raise_lost, members=members, generation=self._groups)
        group.stage(self.staging)
        return group

    def heartbeat(self, *, phase: str, round: int, client: str = "", step: int = 0) -> None:
        """Tell the others what this rank does; at most one write a second while phase and client stay the same."""
        self._liveness.beat(phase=phase, round=round, client=client, step=step)
        self.faults(phase, round=round, client=client, step=step)

    def broadcast(
        self, flat: Tensor, *, clients: int | None = None, numbers: int | None = None, came: Came = ignored
    ) -> None:
        """Send the server's vectors to all ranks, over the process group."""
        if self._agreed == self._next_broadcast(flat):
            self._group.enter(Op.BROADCAST)
        else:
            self._group.agree(Op.BROADCAST, round=0, length=flat.numel(), dtype=flat.dtype)
        self._agreed = ""
        if not self.vector.is_shared(flat):
            self._group.broadcast(flat, came)
        copies = (self.num_clients if clients is None else clients) if self.is_server else 0
        sent = flat.nbytes * (self._group.size - 1 if self.is_server else 1)
        logical = flat.nbytes * copies if numbers is None else numbers * flat.itemsize
        self.meter.count("down", "broadcast", logical=logical, messages=copies, physical=sent)

    def broadcast_packets(self, messages: Sequence[Packet], *, round: int) -> list[Packet]:
        """Send the server's packets to all ranks."""
        return mail.broadcast(self._group, self.meter, messages, round=round, num_clients=len(self.names))

    def _next_broadcast(self, flat: Tensor) -> str:
        return f"operation {self._group.sequence + 1}, a broadcast of {flat.numel()} numbers of {flat.dtype}"

    def scatter_packets(self, messages: Mapping[int, Sequence[Packet]], *, round: int) -> list[Packet]:
        """Send to each rank its own packets."""
        return mail.scatter(self._group, self.meter, messages, round=round, num_clients=len(self.names))

    def begin_early(
        self, local: UpdateBuffer, exponent: int | None, *, round: int, expected: Mapping[int, Collection[str]]
    ) -> Early | None:
        """Begin the round's early sum, where there is one."""
        way = self._options.exchange if self.staging is None else "reduce"  # no thread of its own on a GPU
        self._early = begin_early(self._aggregation(local, round), self._store, exponent, way, expected, self._early)
        return self._early

    @contextmanager
    def open_updates(
        self, local: UpdateBuffer, accepted: Sequence[Report], *, round: int, secret: bool = False
    ) -> Iterator[AcceptedUpdates | None]:
        """Open the round's updates by the protocol of `comm.sums.aggregation`."""
        self._group.connect()  # the way of a sum depends on that of payloads
        aggregation = replace(self._aggregation(local, round), is_secret=secret)
        if not self.is_server:
            answer_requests(aggregation)
            yield None
            return
        if unknown := [report.client for report in accepted if report.client not in self._places]:
            aggregation.broadcast_request(Request(Op.ABORT))
            raise ValueError(f"client `{unknown[0]}` was accepted but was not in the last gather_reports")
        self._count_updates(local, accepted)
        updates = DistributedUpdates(aggregation, accepted, self._places, self._options.exchange, self._early)
        try:
            yield updates
        except BaseException as error:
            if not self._group.is_broken:
                updates.finish(Op.REFUSED if isinstance(error, RefusedUpdatesError) else Op.ABORT)
            raise
        updates.finish(Op.DONE)

    def all_gather_updates(self, local: UpdateBuffer, accepted: Sequence[str], *, round: int) -> list[Tensor]:
        """Give every rank all updates: one all-gather, in which each sends as much as the longest one."""
        terms = None
        if self.is_server:
            terms = [Term(*self._places[client], 1.0) for client in accepted]
            count_replicated(self.meter, local.size * local.dtype.itemsize, len(accepted))
        return all_gather_updates(self._aggregation(local, round), terms)

    def peers(self, local: UpdateBuffer, *, round: int) -> GroupPeers:
        """Open a way for a sum in slices over the process group."""
        return GroupPeers(self._aggregation(local, round), self._places)

    def join_worker(self, ranks: Sequence[int]) -> WorkerGroup | None:
        """Join the ranks of this worker."""
        if len(ranks) == 1:
            return None
        if self._worker is None:
            self._liveness.beat(phase="join worker")
            backend = "gloo" if self._shared is None or self._shared & set(ranks) else BACKENDS
            self._worker = WorkerGroup(self._store, ranks, self.rank, partial(self._raise_lost, among=ranks), backend)
        return self._worker.check(ranks)

    def close(self) -> None:
        """Leave the job; waits at most 10 s for the others before the sockets close."""
        if not self._is_closed:
            self._is_closed = True
            self._shutdown.leave_together(is_broken=self._group.is_broken)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        self._is_closed = True
        self._shutdown.leave_with_error(kind.__name__)

    def _aggregation(self, local: UpdateBuffer, round: int) -> Aggregation:
        about = self.meter, self.faults, round, self.memory, self.masking, self.witness, self._sworn
        return Aggregation(self._group, local, self.names, *about)

    def _drop(self) -> None:
        """Close all sockets."""
        self._group.drop()
        if self._worker is not None:
            self._worker.close()

    def _raise_lost(self, text: str, among: Collection[int] | None = None) -> NoReturn:
        """Raise for a lost rank, unless `commit_collective` is to find out instead."""
        if self._recovers and among is None:
            raise CollectiveFailed(f"a collective failed ({text})")
        self._shutdown.raise_culprit(text, among)
