"""The buffer that a round's updates enter: when it is closed to who still trains, and what of it travels before that.

A client that is late fails with the status `failed:Late`, so that nothing else has to know of it: its update does not
count, its state stays as it was, and its record says so. Who is late depends on clocks; the record of a run is enough
to do it again with the same bits (`clients.replay`, `async.replay`). Where the scale of the buffer's sum is known
before the round (`previous_scale`), what has entered travels while others train.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedtorch.comm.job.event_log import EventLog
from fedtorch.comm.sums.early import Early
from fedtorch.config.schema import ClientsConfig
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError, DataError, UpdateError
from fedtorch.core.places import Places
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
    """One rank's side of the buffer of a round; called by all ranks alike, but for `put` and `take_back`.

    Nothing travels before the meeting that follows the training where the scale is not known before the round.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self.closing = Closing(context.config.clients, context.comm.events)
        """when it closes"""
        self._early: Early | None = None
        self._put: set[str] = set()

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
        self._put = set()
        names = {name for own in expected.values() for name in own}
        if scale is None or len({_digest(context.updates.places(name)) for name in names}) != 1:
            return
        about = context.updates, scale.exponent
        self._early = context.comm.begin_early(*about, round=context.round, expected=expected)

    @property
    def is_under_way(self) -> bool:
        """May an update travel as soon as it is `put`?"""
        return self._early is not None

    def put(self, report: Report, draws: int = 1) -> None:
        """A client's update is there, if it has one; nothing the second time. report: by the name of the update."""
        context, name = self._context, report.client
        if self._early is None or name in self._put or not report.is_ok or name not in context.updates:
            return
        (weight,) = context.weighing.own([replace(report, draws=draws)])
        self._put.add(name)
        if weight:
            self._early.put(name, weight)

    def take_back(self, name: str) -> None:
        """The client failed; if its update travels already, the round is summed anew."""
        if self._early is not None and name in self._put:
            self._early.void()
        self._context.updates.clear([name])

    def close(self) -> None:
        """The round's training is over: elsewhere than on the server, wait until everything is sent."""
        context = self._context
        if self._early is not None:
            self._early.close(lambda: context.comm.heartbeat(phase="sums", round=context.round))

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Within it all ranks meet; afterwards nothing is on its way any more."""
        early, self._early = self._early, None
        try:
            yield
        except Stopped:
            if early is not None:
                early.finish()
            raise
        if early is not None:
            self._context.members.retry_on_loss("sums", early.finish)


def _digest(places: Places | None) -> str:
    """Equal exactly where the same numbers travel."""
    return "" if places is None else places.digest


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
