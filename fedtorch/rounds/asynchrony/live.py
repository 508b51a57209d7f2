"""Asynchronous rounds by the real clock: whoever is free takes the job that has waited longest."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple

from fedtorch.core.update import Report
from fedtorch.rounds.asynchrony.arrivals_file import ArrivalsFile
from fedtorch.rounds.asynchrony.federation import Event
from fedtorch.rounds.asynchrony.jobs import LiveJobs
from fedtorch.rounds.asynchrony.plan import Job
from fedtorch.rounds.asynchrony.training import JobTrainer
from fedtorch.rounds.buffer import LATE, LOOK_EVERY_S, Late
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped

_POLL_S = 0.01  # between two looks at what others have done
WATCH_EVERY_S = 1.0  # between two looks at whether they are there


class LiveTrainer(JobTrainer):
    """Trains jobs as they come; the order in which clients are done decides, and is written down.

    All ranks read the same events and come to the same starts, numbers and buffers. A rank that is done announces its
    job and takes the next; when a buffer has all its arrivals, ranks end the jobs that they train, which arrive for a
    later buffer, and meet. A job whose update would be dropped ends before its next step: one that has become too old,
    or would come after the last version. A run that goes on takes the lines of arrivals.jsonl first: their jobs in open
    buffers are trained again and arrive as they did, then the clock goes on.
    """

    jobs: LiveJobs

    def __init__(self, context: RoundContext, jobs: LiveJobs) -> None:
        super().__init__(context, jobs)
        self.federation = self.known = jobs.federation
        self._file = ArrivalsFile(context.config.folder, self.federation)
        self._events = context.comm.events
        self._recorded: list[Job] = []  # that had arrived before this process
        self._read = 0  # events that this rank has read
        self._written = 0  # events that are in the file
        self._taken: set[int] = set()  # starts that some rank trains, or has trained, as far as this one has asked
        self._began_us = 0
        self._looked_s = self._watched_s = float("-inf")

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
        self._recorded, self._written = self.federation.jobs, len(self.federation.events)
        self._taken = {job.start for job in self._recorded if job.number is None or job.buffer < context.round}
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
        while federation.version < round:
            federation.step()
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
            context.versions.keep(round, context.vectors.flat)
        return self._of(buffer)

    def _train_until_full(self) -> None:
        context, round = self.context, self.context.round
        while True:
            self._sync()
            if (job := next(self._mine(), None)) is not None:
                self._train_and_announce(job)
            elif self.federation.is_full(round) or self._must_meet():
                return
            else:
                context.comm.heartbeat(phase="train", round=round)
                if context.role.is_stopped():
                    raise Stopped
                time.sleep(_POLL_S)

    def _mine(self) -> Iterator[Job]:
        """Jobs that are this rank's from now on: recorded ones of the buffer that closes now, then who has waited."""
        federation, round = self.federation, self.context.round
        recorded = [job for job in self._recorded if job.number is not None and job.buffer == round]
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

    def _train_and_announce(self, job: Job) -> None:
        started, name = self._now_us(), self.jobs.name(job)
        self._train_job(job)
        report = self._reports[name]
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

    def _must_meet(self) -> bool:
        """Is somebody away, so that the buffer may never be full? Looks once a second.

        Where the run goes on without a lost worker, the server says that its clients are lost, and nobody meets.
        """
        context, now_s = self.context, time.monotonic()
        if not self.federation.running:
            return True  # a meeting finds that too few clients are left
        if now_s - self._watched_s < WATCH_EVERY_S:
            return False
        self._watched_s, gone = now_s, set(context.comm.missing())
        if context.config.clients.on_loss != "continue" or 0 in gone:
            return bool(gone)
        workers, homes = context.components.topology.workers, context.components.placement.homes
        away = {client for client, worker in homes.items() if gone & set(workers[worker])}
        self._tell_losses(away | set(context.members.lost))
        return False

    def _tell_losses(self, away: Collection[str]) -> None:
        """On the server: whose worker was lost since this was last called, or is back. away: clients, others too."""
        if self.context.comm.is_server:
            self._sync()
            now = {place for place, name in enumerate(self.federation.names) if name in away}
            for place in sorted(now ^ self.federation.lost):
                newest, status, at = self.federation.version, "lost" if place in now else "back", self._now_us()
                self._tell(Event(-1, max(newest, self.context.round), status, at, at, place))
            self._sync()

    def settle(self, accepted: Sequence[Report]) -> None:
        """As for a plan; who was lost before the buffer's sum was made is written down before a checkpoint is."""
        self._tell_losses(set(self.context.members.lost))
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
