"""Interface of every communicator; the round loop is written against this alone."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

from torch import Tensor
from typing_extensions import Self

from fedtorch.comm.job.event_log import EventLog
from fedtorch.comm.job.faults import Faults
from fedtorch.comm.job.store import JobMember
from fedtorch.comm.job.witness import Witness
from fedtorch.comm.sparse.peers import Peers
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.early import Early
from fedtorch.comm.transport.meter import Meter
from fedtorch.comm.transport.process_group import Came, ignored
from fedtorch.comm.transport.server_vector import ServerVector
from fedtorch.comm.transport.update_memory import UpdateMemory
from fedtorch.comm.wire import Packet, packet_to_report, report_to_packet
from fedtorch.comm.worker import WorkerGroup
from fedtorch.core.errors import PreflightError
from fedtorch.core.names import Names
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.privacy.public_sum import Masking
from fedtorch.trust.receipts import Signed

log = logging.getLogger(__name__)


class Met(NamedTuple):
    """Messages of a meeting."""

    gathered: list[Packet]
    """On the server all ranks', by client index (those of `NO_CLIENT` first, by rank); elsewhere none."""
    answered: list[Packet]
    """The server's, on all ranks."""


Answer = Callable[[list[Packet]], Sequence[Packet]]
"""On the server: what it says to what was gathered."""
ToReports = Callable[[list[Report]], Sequence[Packet]]
"""On the server: what it says to all ranks' reports."""


def nothing(_: list[Any]) -> Sequence[Packet]:
    """No answer."""
    return ()


class Communicator(ABC):
    """Moves weights, updates and numbers between the server (rank 0) and all ranks.

    Every method is called by every rank in the same order, except where it says otherwise; only `barrier`, `meet` and
    `preflight` may be waited in for long, so every phase begins with one of them. Tensors are flat vectors, on the
    CPU; those of `broadcast` and the updates of a sum may also lie on `vector.device`.
    When a method raises DeadlineError, PreflightError or FedtorchError the communicator cannot be used any more;
    leave it (`with` or `close`), which tells the other ranks at once, and end the process.
    """

    rank: int
    """This rank; 0 is the server."""
    size: int
    """How many ranks the job began with."""
    hosts: tuple[str, ...] = ()
    """The name of every rank's host; none where all ranks are on one."""
    lost: frozenset[int] = frozenset()
    """Ranks that the others go on without; see `enable_loss_recovery`."""
    member: JobMember | None = None
    """This rank's place in the job; None where it is the only one."""
    has_ended: bool = False
    """Is this for ranks that missed the run's end alone, to hear of it?"""
    returned: frozenset[int] = frozenset()
    """Those of them that are back, and wait for the others to join again; as the last meeting has found."""
    stops: bool = False
    """Did any rank want to stop at the last meeting?"""
    told: Sequence[Packet] = ()
    """What the server said to the reports of the last `gather_reports`."""
    names: Names
    """The clients in manifest order; messages carry a client's place in it. Then jobs, see `name_jobs`."""
    num_clients: int
    """How many of the names are clients'."""
    meter: Meter
    """Bytes and messages of this rank so far."""
    faults: Faults
    """None but in tests."""
    events: EventLog
    """Who is done first: how many clients of a round are, or with which jobs where rounds wait for nobody."""
    vector: ServerVector
    """Where the server's vectors are."""
    memory: UpdateMemory
    """Where this rank's updates are, so that other ranks of its machine can read them."""

    gpus: Mapping[int, Mapping[str, str]] = {}
    """On the server of several ranks, after `preflight`: rank -> name and versions of its GPU, where it has one."""
    witness: Witness | None = None
    """Where parties sign what they send: what this one needs for that; after `begin_checks`."""
    sworn: tuple[Signed, ...] = ()
    """What parties have sworn to where they last did, with their signatures."""
    masking: Masking | None = None
    """Masking of a run with a secure sum: ranks answer to nothing else, and on their own config's terms alone."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.num_clients = Names.of(names), len(names)
        self.meter, self.events, self.vector = Meter(), EventLog(), ServerVector()
        self.memory = UpdateMemory(lambda: False)
        self.faults = Faults.from_environ(os.environ)

    def name_jobs(self, names: Sequence[str]) -> None:
        """Let messages and updates be about these too, the same on all ranks; no client has one of these names.

        Where a client trains more than once before its first update counts, updates go by jobs.
        """
        self.names = Names.of((*self.names[: self.num_clients], *names))

    @property
    def is_server(self) -> bool:
        """Whether this rank holds the global weights."""
        return self.rank == 0

    @property
    def party(self) -> str:
        """Name of this rank's party, where parties sign with keys of their own; empty: they do not."""
        return ""

    @property
    def swears(self) -> bool:
        """Do they, so that they can swear to what they have?"""
        return bool(self.party)

    def begin_checks(self, **kinds: bool) -> None:
        """After `preflight`: from now on parties sign what they send.

        kinds: `has_records`, do silos check rounds, and `has_tags`, and their sums, by a key that all of them have but
        the server; both are true where they are not given.

        Raises:
            ValueError: this rank is no party with a key of its own.
            PreflightError, ForgedNoteError: what silos say to each other has not arrived.
        """
        raise ValueError("only parties with keys of their own check sums")

    @abstractmethod
    def preflight(self, facts: Mapping[str, str], *, crosses: str = "") -> None:
        """Compare `facts` (digests, versions, seed: nothing secret) on all ranks, before anything else is exchanged.

        crosses: why a round's vectors go through memory that ranks of a machine share; empty: they may stay on devices.
            The same on all ranks that have the same facts.

        Raises:
            PreflightError: on every rank, with field, rank and both values of each difference.
            DeadlineError: a rank did not come within the timeout.
        """

    def barrier(
        self,
        phase: str,
        *,
        round: int,
        stop: bool = False,
        may_reopen: bool = False,
        vector: Tensor | None = None,
    ) -> bool:
        """Meet without messages; `stops`."""
        self.meet(phase, round=round, stop=stop, may_reopen=may_reopen, vector=vector)
        return self.stops

    @abstractmethod
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
        """Wait until every rank is there, for hours if need be; sets `stops` on all ranks if any of them said `stop`.

        Goes on waiting for as long as the missing ranks give signs of life (`heartbeat`). messages: of this rank, to
        the server. answer: on the server, once all are there, unless one wants to stop. So a meeting takes one round
        trip, with messages both ways or without. may_reopen: let all know which lost ranks are back (`returned`).
        vector: what is broadcast first after it, whose length and dtype are compared here and not once more then.
        oath: where parties sign with keys of their own (`swears`), a digest that all must have in common.

        Raises:
            DeadlineError: on every rank, naming the rank that was silent for the timeout, or has left, and what it
                was doing. On a worker also when the server is silent.
            PreflightError: on every rank, if they came for different phases or rounds, a message is damaged or two are
                of the same client and kind.
            TrustError: a party has sworn to another digest.
        """

    def refuse(self, told: str, code: int) -> None:  # noqa: B027  # nobody else is there
        """On one rank: end the others, which raise an error of this code with this text where they meet next.

        Waits until they have come there, or one of them is known to be lost. The job is over then.
        """

    def pass_updates(self, local: UpdateBuffer, reports: Sequence[Report], *, round: int) -> None:
        """Where this side has a gate: let it measure the updates of these reports, of which nothing has left yet.

        Raises:
            PolicyError: one of them must not leave.
        """
        if self.member is None:
            return
        for report in reports:
            if report.status == "ok" and report.client in local:
                self.member.store.signature.pass_update(report.client, round, local.get(report.client))

    @abstractmethod
    def enable_loss_recovery(self) -> None:
        """From now on the loss of a rank other than the server is not the end, if the config says so.

        `barrier` then leaves out a rank that has ended and notes it in `lost`; a collective in which one is lost raises
        CollectiveFailed on ranks that notice, and every rank must call `commit_collective` after its collectives.
        """

    def missing(self) -> Sequence[int]:
        """Other ranks that have ended, or were silent for too long; for who waits without a meeting, now and then.

        Where the run goes on without them: nothing follows from it before the next meeting.

        Raises:
            DeadlineError, TrustError: as a meeting would, where the run does not go on without them.
        """
        return ()

    def commit_collective(self, is_done: bool, *, phase: str, round: int) -> bool:
        """After collectives: did they go through on all ranks that are left? All get the same answer.

        False: those that are left have a new group, and nothing that was received counts.
        """
        return is_done

    @abstractmethod
    def heartbeat(self, *, phase: str, round: int, client: str = "", step: int = 0) -> None:
        """A sign of life, for this rank alone: to be called in every step of anything long. Cheap: mostly a clock."""

    @abstractmethod
    def broadcast(
        self, flat: Tensor, *, clients: int | None = None, numbers: int | None = None, came: Came = ignored
    ) -> None:
        """Copy the server's `flat` into every other rank's `flat`, which must have its length and dtype.

        What `vector` shares is there already: nothing is copied, but counted as if it were.

        clients: how many clients this is for, for the meter's logical bytes; all of them by default. numbers: how many
        all of them together get of it, if not all get all. came: told how much of it is there, while the rest is under
        way; not where nothing is copied.
        """

    def gather(self, messages: Sequence[Packet], *, round: int) -> list[Packet]:
        """Meet with messages to the server; see `Met.gathered`."""
        return self.meet("gather", round=round, messages=messages).gathered

    @abstractmethod
    def broadcast_packets(self, messages: Sequence[Packet], *, round: int) -> list[Packet]:
        """The server's `messages` on every rank; what other ranks pass is ignored."""

    @abstractmethod
    def scatter_packets(self, messages: Mapping[int, Sequence[Packet]], *, round: int) -> list[Packet]:
        """This rank's of the server's `messages`, by rank; what other ranks pass is ignored. No rank gets another's."""

    def begin_early(
        self, local: UpdateBuffer, exponent: int | None, *, round: int, expected: Mapping[int, Collection[str]]
    ) -> Early | None:
        """Let updates travel while others train, see `comm.sums.early`; None on all ranks: they do not.

        exponent: on the server, of the scale of the round's sum, None: it is not known; ignored elsewhere. expected:
        rank -> clients whose updates may come from it; the same on all ranks.
        The sum that comes of it counts in the `open_updates` of the same round where it is what is asked for there.
        From here to `Early.finish` no rank calls anything but `heartbeat`, meetings and what `events` has.
        """
        return None

    @abstractmethod
    def open_updates(
        self, local: UpdateBuffer, accepted: Sequence[Report], *, round: int, secret: bool = False
    ) -> AbstractContextManager[AcceptedUpdates | None]:
        """Open the accepted updates in a `with`, on all ranks: on the server to be combined there; elsewhere None.

        Other ranks answer the server's requests before their block begins; `comm.sums.aggregation` has the protocol.

        local: the updates of this rank's clients; the same length and dtype on all ranks.
        accepted: on the server, some of the reports of the last `gather_reports`; ignored elsewhere.
        secret: the other ranks are told of their own clients alone, and no rank but the server sees what others send;
        all updates of the round then have the same places.
        If the server's block raises, so does the `with` of every rank: FedtorchError, which is RefusedUpdatesError
        where the server's error is.
        """

    @abstractmethod
    def all_gather_updates(self, local: UpdateBuffer, accepted: Sequence[str], *, round: int) -> list[Tensor]:
        """The accepted clients' updates on every rank, in the order of `accepted`, which is the same on all ranks.

        local: the updates of this rank's clients, all of one length. The clients are some of those of the last
        `gather_reports`. The tensors are not to be changed.
        """

    @abstractmethod
    def peers(self, local: UpdateBuffer, *, round: int) -> Peers:
        """Open a way for a sum of messages in slices (`comm.sparse.allreduce`); made anew for each.

        local: the messages of this rank's clients, all of one length.
        """

    def join_worker(self, ranks: Sequence[int]) -> WorkerGroup | None:
        """The group of the ranks that make up this rank's worker; None if it is alone.

        Made at the first call, which waits for the other ranks of the worker; after `preflight`. Closed with this
        communicator.
        """
        return None

    def reopen(self) -> JobMember:
        """Leave in good order, to join again together with the ranks in `returned`: what the next `join` takes."""
        raise NotImplementedError("a job of one rank has nobody to let in")

    @abstractmethod
    def close(self) -> None:
        """Leave in good order, together with the other ranks; does nothing the second time."""

    def gather_reports(
        self,
        reports: Sequence[Report],
        *,
        round: int,
        stop: bool = False,
        oath: str = "",
        answer: ToReports = nothing,
    ) -> list[Report]:
        """Meet with reports; on the server all ranks' in manifest order; elsewhere [].

        stop, oath: see `meet`. answer: on the server, what it says to them, which is `told` on all ranks.
        """
        self.faults("header", round=round)
        messages = [report_to_packet(report, self.names.place(report.client)) for report in reports]

        def reply(gathered: list[Packet]) -> Sequence[Packet]:
            return answer([packet_to_report(message, self.names) for message in gathered])

        met = self.meet("gather", round=round, messages=messages, answer=reply, stop=stop, oath=oath)
        self.told = met.answered
        return [packet_to_report(message, self.names) for message in met.gathered]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sorted(self, messages: Sequence[Packet]) -> list[Packet]:
        """By client, stable; no client may have sent two of a kind."""
        seen: set[tuple[int, str]] = set()
        for message in messages:
            key = (message.client, message.kind)
            if message.client >= 0 and key in seen:
                raise PreflightError(
                    f"client `{self.names[message.client]}` sent two {message.kind} messages; expected one: "
                    f"two ranks believe that they host it"
                )
            seen.add(key)
        return sorted(messages, key=lambda message: message.client)

    def _count_updates(self, local: UpdateBuffer, accepted: Sequence[Report]) -> None:
        numbers = sum(local.length(report.client) for report in accepted)
        self.meter.count("up", "aggregate", logical=numbers * local.dtype.itemsize, messages=len(accepted))
