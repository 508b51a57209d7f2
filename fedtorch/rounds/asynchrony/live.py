"""Asynchronous rounds by the real clock: whoever is free takes the job that has waited longest."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from typing import NamedTuple

from torch import Tensor

from fedtorch.core.update import Report
from fedtorch.rounds.asynchrony.arrivals_file import ArrivalsFile
from fedtorch.rounds.asynchrony.federation import Event
from fedtorch.rounds.asynchrony.jobs import LiveJobs
from fedtorch.rounds.asynchrony.pausing import Left, Pausable
from fedtorch.rounds.asynchrony.plan import Job
from fedtorch.rounds.asynchrony.training import JobTrainer
from fedtorch.rounds.buffer import LATE, LOOK_EVERY_S, Late
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped

_POLL_S = 0.01  # between two looks at what others have done
WATCH_EVERY_S = 1.0  # between two looks at whether they are there


class AtWork(NamedTuple):
    """A job that this rank trains."""

    job: Job
    """As it was when it began."""
    started: int
    """When that was, microseconds of the run's clock."""
    present: Tensor
    """The rank's vectors beside it."""
    work: Pausable
    """Its training."""


class LiveTrainer(JobTrainer):
    """Trains jobs as they come; the order in which clients are done decides, and is written down.

    All ranks read the same events and come to the same starts, numbers and buffers. A rank that is done announces its
    job and takes the next; when a buffer has all its arrivals, all ranks meet for the step, and a job that one of them
    trains stands still before its next step until they have. A job whose update would be dropped ends before its next
    step: one that has become too old, or would come after the last version. A run that goes on takes the lines of
    arrivals.jsonl first: their jobs in open buffers are trained again and arrive as they did, then the clock goes on.
    """

    jobs: LiveJobs

    def __init__(self, context: RoundContext, jobs: LiveJobs) -> None:
        super().__init__(context, jobs)
        self.federation = self.known = jobs.federation
        self._file = ArrivalsFile(context.config.folder, self.federation)
        self._events = context.comm.events
        self._recorded: dict[int, int] = {}  # start -> buffer of the jobs that had arrived before this process
        self._read = 0  # events that this rank has read
        self._written = 0  # events that are in the file
        self._taken: set[int] = set()  # starts that some rank trains, or has trained, as far as this one has asked
        self._began_us = 0
        self._looked_s = self._watched_s = float("-inf")
        self._at_work: AtWork | None = None
        self._can_pause = context.components.engine.can_pause and not context.config.has_trainers

    def begin(self) -> None:
        """Take what was recorded, and send the older versions that jobs start from.

        Raises:
            CheckpointError: the file of arrivals is missing, or not of this run.
        """
        context = self.context
        self.federation.done = context.round
        self._events.begin()
        if context.comm.is_server:
            if context.round:
                for event in self._file.take_up():
                    self._events.add(json.dumps(astuple(event)))
                self._read = len(self.federation.events)
            else:
                self._file.begin()
        context.members.barrier("arrivals", may_stop=False)
        self._sync()
        recorded, self._written = self.federation.jobs, len(self.federation.events)
        self._recorded = {job.start: job.buffer for job in recorded}
        self._taken = {job.start for job in recorded if job.number is None or job.buffer < context.round}
        last = max((event.arrived for event, _ in self.federation.events), default=0)
        self._began_us = last - time.monotonic_ns() // 1000
        self.jobs.make_names(context.round)
        context.comm.name_jobs(self.jobs.names)
        self._share_versions()

    def train_cohort(self) -> list[Report]:
        """Train jobs until the buffer that closes now has all its arrivals; the reports of this rank's jobs in it."""
        context, federation, round = self.context, self.federation, self.context.round
        federation.done = round  # before others' events of this round, so that names are the same on all ranks
        self.jobs.open(round)
        self._tell_losses(set(context.members.lost))
        self._sync()
        federation.step_to(round)
        self.buffer.open(dict.fromkeys((ranks[0] for ranks in context.components.topology.workers), self.jobs.names))
        for report in self._of(federation.buffer(round)):
            self.buffer.put(report)
        try:
            self._train_until_full()
        except Stopped:
            self.drawn = []
            return []  # all ranks must come to the same meeting, which then stops them together
        self._write()
        buffer = self._open()
        if round in federation.live(round + 1):
            self._keep(round)
        return self._of(buffer)

    def end(self) -> None:
        """A job that stands still is given up: for good, or as one that a signal stops."""
        if self._at_work is not None:
            self._at_work.work.leave(Stopped if self.context.comm.stops else Left)
            self._at_work = None

    def _train_until_full(self) -> None:
        context, round = self.context, self.context.round
        while True:
            self._sync()
            if self._at_work is not None and not self._may_pause:
                self._go_on(self._at_work)
            elif self._at_work is None and (job := next(self._mine(), None)) is not None:
                self._begin_job(job)
            elif self.federation.is_full(round) or not self.federation.running:
                return  # where nobody is left, a meeting says so
            else:
                self._watch()
                context.comm.heartbeat(phase="train", round=round)
                if context.role.is_stopped():
                    raise Stopped
                time.sleep(_POLL_S)

    def _mine(self) -> Iterator[Job]:
        """Jobs that are this rank's from now on: of the buffer that closes now those that were recorded, and those
        that are void, of which somebody has to say so; then who has waited."""
        federation, round = self.federation, self.context.round
        recorded = [job for job in federation.buffer(round) if job.void or job.start in self._recorded]
        running = [] if federation.is_full(round) else sorted(federation.running.values(), key=lambda job: job.start)
        for job in (*recorded, *(job for job in running if job.version <= round)):
            if job.start not in self._taken and self._may_train(job):
                self._taken.add(job.start)
                if self._events.claim(job.start):
                    yield job

    def _may_train(self, job: Job) -> bool:
        components = self.context.components
        if self.context.has_homes:
            return self.context.role.hosts(components.placement.homes[job.client])
        return components.topology.worker_of(self.context.comm.rank) is not None

    def _begin_job(self, job: Job) -> None:
        started = self._now_us()
        if not self._can_pause:
            self._train_job(job)
            self._announce(job, started)
            return
        work = Pausable(partial(self._train_job, job), self.context.components.engine)
        self._at_work = AtWork(job, started, self.context.vectors.flat, work)
        self._go_on(self._at_work)

    def _go_on(self, at_work: AtWork) -> None:
        """Train until the job is done, and say so, or until the buffer that closes now is full."""
        try:
            is_done = at_work.work.go_on()
        except BaseException:
            self._at_work = None
            raise
        if is_done:
            self._at_work = None
            self._announce(at_work.job, at_work.started)

    @property
    def _may_pause(self) -> bool:
        """Do the ranks want to meet, so that a job may stand still?

        Not where others than the package's own engine train, nor as long as buffers to come have jobs that were
        recorded: these must be trained first.
        """
        is_free = self._can_pause and all(buffer <= self.context.round for buffer in self._recorded.values())
        return is_free and self.federation.is_full(self.context.round)

    @contextmanager
    def _received(self, job: Job) -> Iterator[None]:
        """Within it the rank has a copy of the job's version: the newest may change while the job stands still."""
        if job.version == self.context.round:
            self._keep(job.version)
        with self.context.vectors.received_as(self.context.versions.get(job.version)):
            yield

    def _keep(self, version: int) -> None:
        if version not in self.context.versions.held():
            self.context.versions.keep(version, self.context.vectors.flat)

    def _announce(self, job: Job, started: int) -> None:
        report = self._reports[name := self.jobs.name(job)]
        if job.number is None and not (report.status == LATE and self._is_last_full):
            self._tell(Event(job.start, self.context.round, report.status, started, max(self._now_us(), started + 1)))
            self._sync()
        arrived = self.federation.arrived(job.start)
        if arrived is None:  # dropped
            del self._reports[name]
            self.context.updates.clear([name])
            self.context.store.unstage(name)
        elif arrived.buffer == self.context.round:
            self.buffer.put(report)

    @property
    def _is_last_full(self) -> bool:
        """Has the buffer that makes the run's last version all its arrivals?"""
        return self.federation.is_full(self.context.config.rounds - 1)

    def _check_in_time(self, client: str) -> None:
        """Before each step. Raises Late: the job's update would be dropped."""
        job, now_s = self._job, time.monotonic()
        if job is None or job.number is not None:
            return
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._sync()
        if self._is_last_full:
            raise Late("the run's last version has all its updates")
        if self.federation.is_too_old(job):
            raise Late(f"async.max_staleness: its version was {job.version}")
        if self._may_pause and (at_work := self._at_work) is not None:
            with self.context.vectors.received_as(at_work.present):
                at_work.work.pause()

    def _watch(self) -> None:
        """Look once a second whether somebody is away, so that the buffer would never be full.

        Where the run goes on without a lost worker, the server says that its clients are lost, and nobody meets.

        Raises:
            DeadlineError: somebody is, and the run does not go on.
        """
        context, now_s = self.context, time.monotonic()
        if now_s - self._watched_s < WATCH_EVERY_S:
            return
        self._watched_s, gone = now_s, set(context.comm.missing())
        if gone:
            workers, homes = context.components.topology.workers, context.components.placement.homes
            away = {client for client, worker in homes.items() if gone & set(workers[worker])}
            self._tell_losses(away | set(context.members.lost))

    def _tell_losses(self, away: Collection[str], counted: Collection[str] = ()) -> None:
        """On the server: whose worker was lost since this was last called, or is back.

        away: clients, others too. counted: those with an update in the sum of the buffer that closes now.
        """
        if self.context.comm.is_server:
            self._sync()
            now = {place for place, name in enumerate(self.federation.names) if name in away}
            for place in sorted(now ^ self.federation.lost):
                lost = "left" if self.federation.names[place] in counted else "lost"
                newest, at = max(self.federation.version, self.context.round), self._now_us()
                self._tell(Event(-1, newest, lost if place in now else "back", at, at, place))
            self._sync()

    def settle(self, accepted: Sequence[Report]) -> None:
        """As for a plan; who is lost, and whether the sum is without them, is written down before a checkpoint is."""
        counted = {self.jobs.client_of(report.client) for report in accepted}
        self._tell_losses(set(self.context.members.lost), counted)
        self._write()
        super().settle(accepted)

    def _write(self) -> None:
        """On the server: the events that are new, into the file."""
        if self.context.comm.is_server:
            self._file.append(self.federation.events[self._written :])
            self._written = len(self.federation.events)

    def _tell(self, event: Event) -> None:
        self._events.add(json.dumps(astuple(event)))

    def _sync(self) -> None:
        """Take the events that are new; a job that was void by then, for its worker seemed to be lost, stays so."""
        for text in self._events.read()[self._read :]:
            self._read, event = self._read + 1, Event(*json.loads(text))
            self.federation.step_to(event.newest)
            if event.start < 0 or event.start in self.federation.running:
                self.federation.apply(event)

    def _now_us(self) -> int:
        return self._began_us + time.monotonic_ns() // 1000

    def _former(self, job: Job) -> Job | None:
        return self.federation.former(job.start)

    def _needs(self, version: int, following: int) -> bool:
        return version in self.federation.live(following)

    def _note_plan(self, following: int) -> None:
        """Nothing: the file of arrivals is checked line by line."""
