"""The buffer that a round's updates enter: when it is closed to who still trains, and what of it travels before that.

A client that is late fails with the status `failed:Late`, so that nothing else has to know of it: its update does not
count, its state stays as it was, and its record says so. Who is late depends on clocks; the record of a run is enough
to do it again with the same bits (`clients.replay`, `async.replay`). Where the scale of the buffer's sum is known
before the round (`previous_scale`), what has entered travels while others train.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedtorch.comm.job.event_log import EventLog
from fedtorch.comm.sums.early import Early
from fedtorch.config.schema import ClientsConfig
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError, DataError, UpdateError
from fedtorch.core.update import Report
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped
from fedtorch.tracking import records

LATE = "failed:Late"
LOOK_EVERY_S = 0.1  # between two questions to the store while a client trains


class Late(UpdateError):
    """The round goes on without this client; its class name is what its report says."""


class Closing:
    """When the buffer of a round is closed to the clients of one rank that are not done."""

    def __init__(self, config: ClientsConfig, events: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        """events: that all ranks share.

        Raises:
            ConfigError: there is nothing to replay.
        """
        self.enough = config.per_round if config.extra and config.per_round != "all" else None
        self.deadline_s, self.replayed = config.deadline, None if config.replay is None else late_in(config.replay)
        self._events, self._clock = events, clock
        self._round, self._began, self._looked = 0, 0.0, 0.0

    def begin(self, round: int) -> None:
        """Begin a round, numbered from 0; called by all ranks alike."""
        self._round, self._began, self._looked = round, self._clock(), float("-inf")
        self._events.begin()

    def check(self, client: str) -> None:
        """While it trains, and before that.

        Raises:
            Late: it is.
        """
        if self.replayed is not None:
            if client in self.replayed.get(self._round, ()):
                raise Late("it came too late in the run that is replayed")
            return
        now = self._clock()
        if self.deadline_s is not None and now - self._began > self.deadline_s:
            raise Late(f"clients.deadline: it was not done after {self.deadline_s:g} s")
        if self.enough is not None and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            if self._events.count() >= self.enough:
                raise Late(f"clients.extra: {self.enough} others were done")

    def arrive(self, client: str) -> None:
        """It has trained.

        Raises:
            Late: it is, though it was not in `check`.
        """
        if self.replayed is not None or self.enough is None:
            return
        if self._events.take() > self.enough:
            raise Late(f"clients.extra: {self.enough} others were done")


class Buffer:
    """One rank's side of the buffer of a round; called by all ranks alike, but for `put`.

    Nothing travels before the meeting that follows the training where the scale is not known before the round.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self.closing = Closing(context.config.clients, context.comm.events)
        """when it closes"""
        self._early: Early | None = None

    def begin(self, drawn: Sequence[tuple[Client, int]], placed: Mapping[str, int]) -> None:
        """A round's training begins. drawn: by the names that updates have. placed: of these names -> worker."""
        self.closing.begin(self._context.round)
        expected: dict[int, list[str]] = defaultdict(list)
        workers = self._context.components.topology.workers
        for client, _ in drawn:
            expected[workers[placed[client.name]][0]].append(client.name)
        self.open(expected)

    def open(self, expected: Mapping[int, Collection[str]]) -> None:
        """As `begin`. expected: rank -> names of the updates that may come from it."""
        context, scale = self._context, self._context.scale
        names = (name for own in expected.values() for name in own)
        if scale is None or any(context.updates.places(name) is not None for name in names):
            return
        self._early = context.members.retry_on_loss(
            "early",
            lambda: context.comm.begin_early(context.updates, scale.exponent, round=context.round, expected=expected),
        )

    def put(self, report: Report, draws: int = 1) -> None:
        """A client of this rank is done, or was before the round; report: by the name that its update has."""
        context = self._context
        if self._early is None or not report.is_ok or report.client not in context.updates:
            return
        (weight,) = context.weighing.own([replace(report, draws=draws)])
        if weight:
            self._early.put(report.client, weight)

    def close(self) -> None:
        """The round's training is over; afterwards nothing is on its way any more."""
        context, early = self._context, self._early
        if early is None:
            return
        self._early = None
        early.close(lambda: context.comm.heartbeat(phase="sums", round=context.round))
        try:
            context.members.barrier("sums")
        except Stopped:
            early.finish()
            raise
        context.members.retry_on_loss("sums", early.finish)


def late_in(where: str) -> Mapping[int, set[str]]:
    """Round, from 0 -> who came too late in it, by the records of a run. where: its folder, or its metrics.jsonl.

    Raises:
        ConfigError: there are none, or they cannot be read.
    """
    path = Path(where) / records.NAME if Path(where).is_dir() else Path(where)
    found: dict[int, set[str]] = defaultdict(set)
    try:
        for record in records.read(path):
            if record.get("kind") == "client" and record.get("status") == LATE:
                found[int(record["round"]) - 1].add(str(record["client"]))
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise ConfigError(
            f"clients.replay is {where}, whose records cannot be read ({error}); give the folder of a run, or its "
            f"{records.NAME}"
        ) from None
    return found
