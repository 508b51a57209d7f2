"""The plan of asynchronous rounds: who trains when and from which version, known before anything is trained.

Time is whole microseconds. In one instant all arrivals of that microsecond are taken first, in the order of their
starts, with a step whenever the buffer is full; then clients start on the free places, from the newest version.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

from fedtorch.config.asynchrony import AsyncConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import seed_for
from fedtorch.rounds.asynchrony.durations import Duration


@dataclass(frozen=True)
class Job:
    """One training of one client, from its start to its arrival."""

    start: int
    """its number among all starts, from 0"""
    client: str
    """who trains"""
    visit: int
    """how often the client has trained before"""
    version: int
    """of the weights that it starts from"""
    started: int
    """by the clock, microseconds"""
    arrived: int
    """by the clock, microseconds"""
    buffer: int
    """the version at its arrival, which is the buffer that it enters; of one that is dropped the one it came in"""
    number: int | None
    """its number among the arrivals that count; None: it came too late and is dropped"""
    void: str = ""
    """status with which it is recorded to have failed; empty: it trains"""

    @property
    def staleness(self) -> int:
        """τ: versions that were made while it trained."""
        return self.buffer - self.version


@dataclass(frozen=True)
class AsyncPlan:
    """All arrivals until the last version, and those of jobs that are under way then; the same on every rank.

    The latter are never trained, unless the run goes on with more rounds: then the plan is this one and more.
    """

    jobs: tuple[Job, ...]
    """in the order of their arrivals, dropped ones too"""
    size: int
    """arrivals in a buffer"""
    versions: int
    """that are made; one a round"""
    instants: tuple[int, ...]
    """when each version was made, microseconds, shape (versions,)"""

    @cached_property
    def _arrivals(self) -> list[list[Job]]:
        last = max((job.buffer for job in self.jobs), default=-1)
        found: list[list[Job]] = [[] for _ in range(max(last, self.versions) + 1)]
        for job in self.jobs:
            found[job.buffer].append(job)
        return found

    def arrivals(self, version: int) -> Sequence[Job]:
        """Who arrives when `version` is the newest, in this order; dropped ones too."""
        return self._arrivals[version]

    @cached_property
    def _buffers(self) -> list[list[Job]]:
        return [[job for job in arrived if job.number is not None] for arrived in self._arrivals]

    def instant(self, version: int) -> int:
        """When the version after this one is made, microseconds."""
        return self.instants[version]

    def buffer(self, number: int) -> Sequence[Job]:
        """The jobs of one buffer, in the order of their numbers."""
        return self._buffers[number]

    @cached_property
    def max_staleness(self) -> int:
        """The largest τ of a job that is not dropped; 0 where there is none."""
        return max((job.staleness for job in self.jobs if job.number is not None), default=0)

    def live(self, version: int) -> list[int]:
        """Versions that are needed when `version` is the newest: it, and those from which jobs of open buffers start.

        At most `max_staleness` + 1, in order.
        """
        last = min(version + self.max_staleness, len(self._buffers) - 1)
        older = {job.version for b in range(version, last + 1) for job in self.buffer(b) if job.version < version}
        return sorted({*older, version})

    @cached_property
    def most_live(self) -> int:
        """The most versions that are needed at a time."""
        return max(len(self.live(version)) for version in range(self.versions + 1))

    @cached_property
    def _digests(self) -> list[str]:
        hasher, found = hashlib.sha256(), [hashlib.sha256().hexdigest()]
        for arrived in self._arrivals[: self.versions]:
            hasher.update(repr([astuple(job) for job in arrived]).encode())
            found.append(hasher.hexdigest())
        return found

    def digest(self, versions: int | None = None) -> str:
        """Equal exactly where the arrivals of the first so many versions are; None: of all. Hexadecimal."""
        return self._digests[self.versions if versions is None else versions]


def make_plan(
    settings: AsyncConfig, clients: Iterable[str], duration: Duration, *, versions: int, run_seed: int
) -> AsyncPlan:
    """Plan until `versions` are made. clients: their names in manifest order.

    Raises:
        ConfigError: there are fewer clients than train at a time.
    """
    names = list(clients)
    if settings.concurrent > len(names):
        raise ConfigError(
            f"async.concurrent is {settings.concurrent} but there are {len(names)} clients; set it to at most "
            f"{len(names)}"
        )
    return _Planner(settings, names, duration, run_seed).until(versions)


class _Planner:
    """The federation by the virtual clock."""

    def __init__(self, settings: AsyncConfig, names: Sequence[str], duration: Duration, run_seed: int) -> None:
        self._settings, self._duration, self._seed, self._names = settings, duration, run_seed, names
        self._idle = list(range(len(names)))  # places, ascending
        self._visits = [0] * len(names)
        self._last_start = [-1] * len(names)
        self._running: list[tuple[int, int, int, int]] = []  # arrival, start, place, version; a heap
        self._begun: dict[int, int] = {}  # start -> when
        self._starts = self._numbers = self._version = 0
        self._jobs: list[Job] = []
        self._instants: list[int] = []

    def until(self, versions: int) -> AsyncPlan:
        now, last = 0, -1  # the last start before the last version
        while self._version < versions or any(start <= last for _, start, _, _ in self._running):
            self._start_all(now)
            now = self._running[0][0]
            while self._running and self._running[0][0] == now:
                self._arrive(*heapq.heappop(self._running))
                if self._version == versions and last < 0:
                    last = self._starts - 1
        return AsyncPlan(tuple(self._jobs), self._settings.buffer, versions, tuple(self._instants[:versions]))

    def _start_all(self, now: int) -> None:
        if self._settings.waits and self._running:
            return
        while len(self._running) < self._settings.concurrent:
            place = self._next()
            self._idle.pop(bisect_left(self._idle, place))
            took = self._duration(self._names[place], self._visits[place])
            heapq.heappush(self._running, (now + took, self._starts, place, self._version))
            self._begun[self._starts] = now
            self._visits[place] += 1
            self._last_start[place] = now
            self._starts += 1

    def _next(self) -> int:
        """The place of who starts, of the idle ones."""
        if self._settings.starts == "longest":
            return min(self._idle, key=lambda place: (self._last_start[place], self._names[place]))
        return self._idle[seed_for(self._seed, "start", self._starts) % len(self._idle)]

    def _arrive(self, now: int, start: int, place: int, version: int) -> None:
        insort(self._idle, place)
        most = self._settings.max_staleness
        is_late = most is not None and self._version - version > most
        self._jobs.append(
            Job(
                start=start,
                client=self._names[place],
                visit=self._visits[place] - 1,
                version=version,
                started=self._begun.pop(start),
                arrived=now,
                buffer=self._version,
                number=None if is_late else self._numbers,
            )
        )
        if is_late:
            return
        self._numbers += 1
        if self._numbers % self._settings.buffer == 0:
            self._version += 1
            self._instants.append(now)
