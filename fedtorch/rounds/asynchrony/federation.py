"""Asynchronous rounds by the real clock: what follows from the order in which clients were done.

Who starts next, from which version, and which buffer an update enters are functions of the events so far, so every
rank, and a run that goes on, comes to the same.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedtorch.config.asynchrony import AsyncConfig
from fedtorch.core.seeds import seed_for
from fedtorch.core.update import LOST
from fedtorch.rounds.asynchrony.plan import Job


@dataclass(frozen=True)
class Event:
    """A client is done; or its worker was lost, or is back."""

    start: int
    """number of its start; -1: it is about the client"""
    newest: int
    """the newest version when it was done"""
    status: str
    """of its training: `ok`, or `failed:...`; of a client `lost`, `left` where what it has in the buffer that closes
    then still counts, or `back`"""
    started: int
    """when its training began, microseconds of the run's clock"""
    arrived: int
    """when it was done"""
    place: int = -1
    """of the client among all, where it is about the client"""


class Federation:
    """Who trains and who has arrived, after the events so far."""

    def __init__(self, settings: AsyncConfig, names: Sequence[str], run_seed: int) -> None:
        self.settings, self.names, self.run_seed = settings, names, run_seed
        self._place = {name: place for place, name in enumerate(names)}
        self._idle = list(range(len(names)))
        self._visits, self._last_start = [0] * len(names), [-1] * len(names)
        self.version, self.numbers, self._starts = 0, 0, 0
        self.running: dict[int, Job] = {}
        """start -> job that has not arrived; buffer and times are not known yet"""
        self.events: list[tuple[Event, Job | None]] = []
        """in their order, each with the job that arrived by it"""
        self.lost: set[int] = set()
        """places of clients whose worker is away, none of whom starts"""
        self.done = 0
        """versions of which nothing is asked any more: the jobs of their buffers are over"""
        self.slots: dict[int, int] = {}
        """start -> number of the name that its job has until its buffer closes, the least that was free"""
        self._free: list[int] = []  # a heap
        self._made = 0  # slots so far
        self._numbered: dict[int, Job] = {}  # start -> its job, once it has a number
        self._arrivals: defaultdict[int, list[Job]] = defaultdict(list)  # by buffer
        self._former: dict[int, int] = {}  # start -> that of the client's job before it that has a number
        self._last: dict[str, int] = {}
        self._start_all()

    def apply(self, event: Event) -> Job | None:
        """Take an event; the job that has arrived by it, None where it is about a client.

        Raises:
            KeyError: nobody has started so.
            ValueError: the version is older than that of an event before, or the client is lost, or back, already.
        """
        if event.newest < self.version:
            raise ValueError(f"its newest version is {event.newest}, after one of {self.version}")
        self.step_to(event.newest)
        job: Job | None = None
        if event.start >= 0:
            job = self._arrive(event)
        else:
            self._lose_or_take_back(event)
        self.events.append((event, job))
        if not self.is_full(self.version):
            self._start_all()
        return job

    def _lose_or_take_back(self, event: Event) -> None:
        """A lost client's jobs weigh nothing in buffers that are open; it does not start until it is back."""
        place, is_lost = event.place, event.status != "back"
        if not 0 <= place < len(self.names) or (place in self.lost) == is_lost:
            raise ValueError(f"client number {place} cannot be {event.status}")
        if not is_lost:
            self.lost.remove(place)
            insort(self._idle, place)
            return
        self.lost.add(place)
        for start in [job.start for job in self.running.values() if job.client == self.names[place]]:
            self._arrive(replace(event, start=start, status=LOST))
        for number in range(event.newest + int(event.status == "left"), self.numbers // self.settings.buffer + 1):
            for at, job in enumerate(arrived := self._arrivals[number]):
                if job.client == self.names[place] and job.number is not None:
                    arrived[at] = self._numbered[job.start] = replace(job, void=job.void or LOST)
        if place in self._idle:
            self._idle.remove(place)

    def _arrive(self, event: Event) -> Job:
        begun = self.running.pop(event.start)
        buffer = self.numbers // self.settings.buffer
        void = "" if event.status == "ok" else event.status
        number = None if self.is_too_old(begun) else self.numbers
        job = replace(begun, buffer=buffer, number=number, started=event.started, arrived=event.arrived, void=void)
        self._arrivals[buffer].append(job)
        insort(self._idle, self._place[job.client])
        if number is not None:
            self.numbers += 1
            self._numbered[job.start], self._last[job.client] = job, job.start
        if number is None or buffer < self.done:
            self._release(event.start)
        return job

    def _release(self, start: int) -> None:
        heapq.heappush(self._free, self.slots.pop(start))

    def is_too_old(self, job: Job) -> bool:
        """Would the job be dropped, if it arrived now?"""
        most = self.settings.max_staleness
        return most is not None and self.numbers // self.settings.buffer - job.version > most

    def arrived(self, start: int) -> Job | None:
        """The job of that start; None: it has not arrived, or was dropped."""
        return self._numbered.get(start)

    def is_open(self, start: int, version: int) -> bool:
        """Is the job of that start trained still, or in a buffer that makes a version after this one?"""
        job = self.arrived(start)
        return start in self.running or start >= self._starts or (job is not None and job.buffer >= version)

    def is_full(self, version: int) -> bool:
        """Has the buffer that makes the version after this one all its arrivals?"""
        return self.numbers >= (version + 1) * self.settings.buffer

    def step(self) -> None:
        """A version was made; clients start on the free places, and names of jobs that are over are free for them."""
        self.version += 1
        arrived = [job for start in self.slots if (job := self.arrived(start)) is not None]
        for start in sorted(job.start for job in arrived if job.buffer < min(self.version, self.done)):
            self._release(start)
        if not self.is_full(self.version):
            self._start_all()

    @property
    def jobs(self) -> list[Job]:
        """Those that have arrived, by buffers, in the order of their arrivals."""
        return [job for number in sorted(self._arrivals) for job in self._arrivals[number]]

    def step_to(self, version: int) -> None:
        """Step until that version is the newest."""
        while self.version < version:
            self.step()

    def buffer(self, number: int) -> list[Job]:
        """The jobs of one buffer so far, in the order of their numbers."""
        return [job for job in self.arrivals(number) if job.number is not None]

    def arrivals(self, version: int) -> list[Job]:
        """Who has arrived for the buffer after this version; dropped ones too."""
        return self._arrivals[version]

    def instant(self, version: int) -> int:
        """When the version after this one was made, microseconds."""
        return max(job.arrived for job in self.buffer(version))

    def live(self, version: int) -> list[int]:
        """Versions that are needed when `version` is the newest, in order."""
        older = {job.version for job in self.running.values()}
        coming = range(version, self.numbers // self.settings.buffer + 1)
        older |= {job.version for number in coming for job in self.buffer(number)}
        return sorted({*(v for v in older if v < version), version})

    def former(self, start: int) -> Job | None:
        """The job of the same client before this start that has a number; None: there is none."""
        return None if (former := self._former.get(start)) is None else self._numbered[former]

    def _start_all(self) -> None:
        while self._idle and len(self.running) < self.settings.concurrent:
            place = self._next()
            self._idle.pop(bisect_left(self._idle, place))
            name = self.names[place]
            if name in self._last:
                self._former[self._starts] = self._last[name]
            self.running[self._starts] = Job(self._starts, name, self._visits[place], self.version, 0, 0, 0, None)
            self.slots[self._starts] = heapq.heappop(self._free) if self._free else self._made
            self._made = max(self._made, self.slots[self._starts] + 1)
            self._visits[place] += 1
            self._last_start[place] = self._starts
            self._starts += 1

    def _next(self) -> int:
        if self.settings.starts == "longest":
            return min(self._idle, key=lambda place: (self._last_start[place], self.names[place]))
        return self._idle[seed_for(self.run_seed, "start", self._starts) % len(self._idle)]
