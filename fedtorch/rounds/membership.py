"""Who is still part of the run: meetings of all ranks, steps that are repeated after a loss, clients that are gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import Tensor

from fedtorch.comm.base import Answer, Met, nothing
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.core.errors import CollectiveFailed, DeadlineError, FedtorchError, QuorumError
from fedtorch.rounds.components import RunComponents

log = logging.getLogger(__name__)

Found = TypeVar("Found")


STOP = "stop"
"""status of a message that asks to stop"""


class Stopped(Exception):
    """A signal asked to stop; the round under way is abandoned on all ranks."""


class Ended(Exception):
    """The server has decided that the run must end; the rounds before the one under way are whole."""

    def __init__(self, reason: FedtorchError) -> None:
        super().__init__(str(reason))
        self.reason = reason
        """the same on all ranks"""


class Returned(Exception):
    """Lost ranks are back, between two rounds; what was computed is saved, and all ranks are to join again."""


@dataclass
class Progress:
    """Where the run is; the same on every rank."""

    round: int = 0
    """rounds done"""
    is_training: bool = False
    """is a round's training and combining under way?"""


class Membership:
    """The ranks and clients that take part. All ranks call its methods at the same places."""

    def __init__(self, components: RunComponents, progress: Progress) -> None:
        self.components, self.comm, self.progress = components, components.comm, progress
        self.lost: dict[str, int] = {}
        """client of a lost worker -> the first round that is drawn without it"""
        self._lost_ranks: frozenset[int] = frozenset()
        self._ended: tuple[bool, bool] | None = None
        """of an `end_round` that nothing followed: does any rank want to stop, and are lost ranks back?"""

    def barrier(self, phase: str, *, may_stop: bool = True, vector: Tensor | None = None) -> None:
        """Wait for all ranks. vector: what is broadcast first after it, if anything. Raises: see `meet`.

        Where nothing is broadcast before a round, and `end_round` was the last thing, all ranks have met already.
        """
        may_reopen = phase == "broadcast" and self.progress.is_training
        ended, self._ended = self._ended, None
        if may_reopen and vector is None and ended is not None:
            self._go_on_or_raise(*ended)
            return
        meeting = partial(self.comm.barrier, phase, may_reopen=may_reopen, vector=vector)
        self.meet(phase, meeting, may_stop=may_stop)

    def exchange(
        self, phase: str, messages: Sequence[Packet] = (), answer: Answer = nothing, *, may_stop: bool = True
    ) -> Met:
        """Wait for all ranks with messages to the server, and its answer. Raises: see `meet`."""
        return self.meet(phase, partial(self.comm.meet, phase, messages=messages, answer=answer), may_stop=may_stop)

    def end_round(self, phase: str, messages: Sequence[Packet]) -> Met:
        """Wait for all ranks with messages to the server, after a round that another one may follow without a meeting.

        Stops nobody: who wants to stop, and who is back, is heard by `barrier` when the next round begins.
        """
        own = [*messages, Packet(NO_CLIENT, "decision", STOP)] if self.components.stop() else messages
        meeting = partial(self.comm.meet, phase, messages=own, answer=_stops, may_reopen=True)
        gathered, answered = self.meet(phase, meeting, may_stop=False)
        self._ended = bool(answered), bool(self.comm.returned)
        return Met([message for message in gathered if message.status != STOP], answered)

    def meet(self, phase: str, meeting: Callable[..., Found], *, may_stop: bool = True) -> Found:
        """Return what a meeting of all ranks returns, which is called with `round` and `stop`.

        Raises:
            Stopped: on all ranks, if any of them was asked to stop.
            Returned: on all ranks, before anything of a round was computed, if lost ranks are back.
        """
        found = meeting(round=self.progress.round, stop=may_stop and self.components.stop())
        self.note_losses()
        if may_stop:
            self._go_on_or_raise(self.comm.stops, bool(self.comm.returned))
        return found

    @staticmethod
    def _go_on_or_raise(stops: bool, are_back: bool) -> None:
        if stops:
            raise Stopped
        if are_back:
            raise Returned

    def retry_on_loss(self, phase: str, exchange: Callable[[], Found]) -> Found:
        """Return what `exchange` returns, a step made of collectives; with lost ranks it is done again without them.

        Where a worker is lost in it and the run goes on (`clients.on_loss`), the others do it again without that one.
        So it must not change anything but what it receives; what follows from it is done with what it returned, which
        counts on all ranks or on none.
        """
        while True:
            answer: list[Found] = []
            try:
                answer.append(exchange())
            except CollectiveFailed as error:
                log.debug("%s of round %d is repeated: %s", phase, self.progress.round + 1, error)
            is_done = self.comm.commit_collective(bool(answer), phase=phase, round=self.progress.round)
            self.note_losses()
            if is_done:
                return answer[0]

    def note_losses(self) -> None:
        """Take the clients of workers that were lost out of the run.

        Raises:
            QuorumError: on all ranks, when `clients.min` cannot be reached any more.
            DeadlineError: on this rank, when another one of its worker was lost, without which it is of no use.
        """
        new, self._lost_ranks = self.comm.lost - self._lost_ranks, self.comm.lost
        if not new:
            return
        workers = {number for number, ranks in enumerate(self.components.topology.workers) if new & set(ranks)}
        if any(self.comm.rank in self.components.topology.workers[worker] for worker in workers):
            raise DeadlineError(f"rank {min(new)}, which belongs to the same worker as this one, was lost")
        placement = self.components.placement
        homes = {**placement.evaluators, **placement.homes}
        self.lose([name for name, worker in homes.items() if worker in workers])

    def leave_out(self, clients: Mapping[str, int]) -> None:
        """These clients have taken no part since the rounds given; called before the first round. See `lose`."""
        self.lose(list(clients))
        self.lost.update(clients)

    def lose(self, clients: Sequence[str]) -> None:
        """These clients take no part any more; in a round whose training is under way they fail.

        Raises:
            QuorumError: see `note_losses`.
        """
        round, least = self.progress.round, self.components.mechanism.least(self.components.config.clients.min)
        least = 0 if self.comm.has_ended else least
        clients = [name for name in clients if name not in self.lost]
        self.lost.update(dict.fromkeys(clients, round + int(self.progress.is_training)))
        left = len(self.components.clients.without(self.lost))
        if self.comm.is_server and clients and not self.comm.has_ended:
            shown = ", ".join(map(self.components.mechanism.shown, clients[:10])) + (", ..." if clients[10:] else "")
            log.warning("round %d: lost %d clients, %d are left: %s", round + 1, len(clients), left, shown)
        config = self.components.config
        staying = [name for name in config.system.pinned if name not in self.lost]
        if not config.has_silos(staying):
            raise QuorumError(
                f"round {round + 1}: {len(config.silos_of(staying))} silos are left after a loss, but "
                f"clients.min_silos is {config.clients.min_silos} (2 with `fedtorch serve` and `join`, unless set): of "
                "one silo alone the sum is its update. Start the run again with all silos, or set clients.min_silos "
                "to 1, if everybody may see that update"
            )
        if left < least:
            raise QuorumError(
                f"round {round + 1}: {left} clients are left after a loss, but clients.min is "
                f"{least}; start the run again with all workers"
            )


def _stops(gathered: list[Packet]) -> list[Packet]:
    """The answer of `Membership.end_round`: one of those that ask to stop, if there are any."""
    return [message for message in gathered if message.status == STOP][:1]
