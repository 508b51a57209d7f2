"""Work of a worker between two versions: jobs of the buffer that closes next, and of later ones while it would wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedtorch.core.client import Client, ClientState, without
from fedtorch.core.errors import CheckpointError
from fedtorch.core.state_keys import OF_BEST, PLAN, TRAINED, TRAINED_ROUND
from fedtorch.core.update import LOST, Report
from fedtorch.rounds.aggregation import Decision, reports_for_log
from fedtorch.rounds.asynchrony.durations import US_PER_S
from fedtorch.rounds.asynchrony.federation import Federation
from fedtorch.rounds.asynchrony.jobs import Jobs
from fedtorch.rounds.asynchrony.plan import AsyncPlan, Job
from fedtorch.rounds.asynchrony.schedule import Rank, Wave, Workers, by_buffer, waves
from fedtorch.rounds.asynchrony.weighing import StalenessWeighing
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.local_training import ClientTrainer, Told
from fedtorch.rounds.membership import Stopped
from fedtorch.rounds.placement import costs
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig

_EVALUATED = OF_BEST | {TRAINED, TRAINED_ROUND}


class JobTrainer(ClientTrainer):
    """Trains the jobs of this rank; a job's update and new state wait until its buffer closes.

    A client's next job begins with the state that the former one left, whether the server has taken that one's update
    or not yet; so a state goes back only where the training itself failed. A run that goes on from a checkpoint trains
    the jobs of open buffers again, with the states and versions of before: the same bits.
    """

    first: Rank = staticmethod(by_buffer)
    """which ready job of a later buffer is trained first; changes no bit"""

    def __init__(self, context: RoundContext, jobs: Jobs) -> None:
        super().__init__(context)
        self.jobs, self.plan = jobs, jobs.plan
        self.known: AsyncPlan | Federation = jobs.plan
        context.comm.name_jobs(jobs.names)
        self._waves: list[Wave] = []
        self._first = 0  # rounds done before the first wave
        self._reports: dict[str, Report] = {}  # job's name -> its report, until its buffer closes
        self._before: dict[int, Job] = {}  # start -> the same client's job before it
        self._last_use: dict[int, int] = {}  # version -> the last round in which a job of this rank starts from it
        self._worker: dict[int, int] = {}  # start -> the worker that trains it
        self._job: Job | None = None  # that is trained
        self._under_way.number = lambda: self._start

    def begin(self) -> None:
        """Share out the jobs that are left, and send the older versions that they start from.

        Raises:
            CheckpointError: the checkpoint is of another plan.
        """
        context, workers = self.context, self.context.components.topology.workers
        self._first = context.round
        if context.comm.is_server:
            self._check_plan()
        each = costs(context.config, context.components.training, context.components.clients)
        homes = context.components.placement.homes if context.has_homes else None
        self._waves = list(
            waves(self.plan, Workers(len(workers), each, homes), done=context.round, first=type(self).first)
        )
        last: dict[str, Job] = {}
        for job in sorted((job for job in self.plan.jobs if job.number is not None), key=lambda job: job.start):
            if job.client in last:
                self._before[job.start] = last[job.client]
            last[job.client] = job
        for round, wave in enumerate(self._waves, context.round):
            for worker, jobs in wave.items():
                self._worker.update({job.start: worker for job in jobs})
                if context.role.hosts(worker):
                    self._last_use.update({job.version: round for job in jobs})
        self._share_versions()

    def train_cohort(self) -> list[Report]:
        """Train this worker's share of the wave; the reports of its jobs in the buffer that closes now.

        What is done of that buffer travels while the other jobs train, at a scale that is known (`buffer`).
        """
        context = self.context
        buffer = self._open()
        self.buffer.begin(self.drawn, {self.jobs.name(job): self._worker[job.start] for job in buffer})
        for report in self._of(buffer):  # trained before the version that is now the newest
            self.buffer.put(report)
        self._keep_version()
        try:
            for worker, jobs in self._waves[context.round - self._first].items():
                if context.role.hosts(worker):
                    for job in jobs:
                        self._train_job(job)
                        if job.buffer == context.round:
                            self.buffer.put(self._reports[self.jobs.name(job)])
        except Stopped:
            pass  # all ranks must come to the same meeting, which then stops them together
        return self._of(buffer)

    def _open(self) -> Sequence[Job]:
        """Begin with the buffer that closes now; its jobs are what was drawn, by the names of their updates."""
        buffer = self.jobs.open(self.context.round)
        clients = [self._client(job) for job in buffer]
        names = map(self.jobs.name, buffer)
        self.drawn = [(Client(n, client.index, client.sizes), 1) for n, client in zip(names, clients, strict=True)]
        return buffer

    def _of(self, buffer: Sequence[Job]) -> list[Report]:
        """Reports of this rank's jobs in the buffer, as far as they are done."""
        found = [(self._reports[name], job) for job in buffer if (name := self.jobs.name(job)) in self._reports]
        return [replace(report, status=self._void(job) or report.status) for report, job in found]

    def _void(self, job: Job) -> str:
        """Status with which a job is over, whatever it trained; empty: that of its training."""
        return job.void or (LOST if job.client in self.context.members.lost else "")

    def settle(self, accepted: Sequence[Report]) -> None:
        """The buffer is closed: the states of its jobs count where training went well; its updates go.

        A lost client's state is that of before, as it is where its worker died with the new one.
        """
        context = self.context
        names = {self.jobs.name(job): job for job in self.known.buffer(context.round)}
        for name, job in names.items():
            if self._void(job):
                context.store.unstage(name)
            else:
                # of evaluations since it trained
                context.store.adopt(name, job.client, keep=OF_BEST, known={TRAINED_ROUND: context.round})
            self._reports.pop(name, None)
        context.updates.clear(names)
        following = context.round + 1
        self._note_plan(following)
        context.versions.keep_only([v for v in context.versions.held() if self._needs(v, following)])

    def told(self, decision: Decision) -> Told:
        """On the server: reports by client, and a record of each arrival since the version before, dropped or not."""
        if not self.context.comm.is_server:
            return Told((), {})
        of_jobs = {report.client: report for report in reports_for_log(decision)}
        weights: dict[str, float] = {}
        for name, weight in decision.weights.items():
            client = self.jobs.client_of(name)
            weights[client] = weights.get(client, 0.0) + weight
        reports = [replace(report, client=self.jobs.client_of(name)) for name, report in of_jobs.items()]
        round = self.context.round
        arrivals = [self._arrival(job, of_jobs, decision) for job in self.known.arrivals(round)]
        stale = [job.staleness for job in self.known.buffer(round)]
        figures = {
            "async/clock_s": self.known.instant(round) / US_PER_S,
            "async/staleness_mean": sum(stale) / len(stale),
            "async/staleness_max": float(max(stale)),
            "async/versions": float(len(self.known.live(round))),
        }
        return Told(reports, weights, figures, arrivals)

    def learn(self, accepted: Sequence[Report]) -> None:
        """Nothing: which worker trains a job follows from the plan."""

    def _hand_over(self, job: ClientJob, report: Report) -> None:
        """Nothing: whether an update is in the buffer that closes now is known when its job is done."""

    def waited_for(self, reports: Sequence[Report]) -> str:
        """Nothing: a wave is shared out by expected costs."""
        return ""

    def _train_job(self, job: Job) -> None:
        """Train a job from its version; its report waits."""
        client = self._client(job)
        self._job = job
        if void := self._void(job):
            report = Report(client.name, status=void)
        else:
            with self._received(job):
                report = self._train_or_retry(client)
        self._reports[self.jobs.name(job)] = replace(report, client=self.jobs.name(job))

    def _client(self, job: Job) -> Client:
        client = self.context.components.clients.named(job.client)
        assert client is not None
        return client

    @contextmanager
    def _received(self, job: Job) -> Iterator[None]:
        """Within it the rank has the vectors of the job's version."""
        context = self.context
        is_newest = job.version == context.round
        with nullcontext() if is_newest else context.vectors.received_as(context.versions.get(job.version)):
            yield

    @property
    def _visit(self) -> int:
        assert self._job is not None
        return self._job.visit

    @property
    def _start(self) -> int:
        assert self._job is not None
        return self._job.start

    def _key(self, client: str) -> str:
        assert self._job is not None
        return self.jobs.name(self._job)

    def _state(self, client: str) -> ClientState:
        """State that its last job left that went well, where the buffer is open still; else what is committed.

        Without what evaluations leave, or are made with: how far they are when a job begins is known to its rank alone.
        """
        assert self._job is not None
        job = self._former(self._job)
        while job is not None and job.buffer >= self.context.round:
            staged = None if self._void(job) else self.context.store.staged(self.jobs.name(job))
            if staged is not None:
                return without(staged, _EVALUATED)
            job = self._former(job)
        return without(self.context.store.get(client), _EVALUATED)

    def _former(self, job: Job) -> Job | None:
        """Find the same client's job before it that is not dropped; None: there is none."""
        return self._before.get(job.start)

    def _settings(self, client: str) -> ClientConfig:
        assert self._job is not None
        return self.context.settings_of(client, self._job.version)

    def _arrival(self, job: Job, reports: dict[str, Report], decision: Decision) -> dict[str, Any]:
        """The record of one arrival; seconds are the virtual clock's."""
        weighing = self.context.weighing
        assert isinstance(weighing, StalenessWeighing)
        base: dict[str, Any] = {"client": job.client, "start": job.start, "visit": job.visit, "version": job.version}
        base |= {"buffer": job.buffer, "staleness": job.staleness, "number": job.number}
        base |= {"started_s": job.started / US_PER_S, "arrived_s": job.arrived / US_PER_S}
        if job.number is None:
            return {**base, "status": "dropped", "factor": None, "weight": None}
        name = self.jobs.name(job)
        factor = weighing.factor(name).hex()
        return {**base, "status": reports[name].status, "factor": factor, "weight": decision.weights.get(name)}

    def _keep_version(self) -> None:
        """Keep the newest version, if this rank needs it after the server's step."""
        context = self.context
        if self._needs(context.round, context.round + 1):
            context.versions.keep(context.round, context.vectors.flat)

    def _needs(self, version: int, following: int) -> bool:
        """Does this rank need a version from the round `following` on? The server: for what a checkpoint has."""
        context = self.context
        if context.comm.is_server:
            return version in self.plan.live(following)
        return self._last_use.get(version, -1) >= following

    def _share_versions(self) -> None:
        """After a restore: the server's older versions to all ranks that need them."""
        context = self.context
        for version in self.known.live(context.round)[:-1]:
            flat = context.versions.get(version) if context.comm.is_server else torch.zeros_like(context.vectors.flat)
            context.members.barrier("versions", may_stop=False)
            context.members.retry_on_loss("versions", partial(context.comm.broadcast, flat))
            if not context.comm.is_server and self._needs(version, context.round):
                context.versions.keep(version, flat)

    def _note_plan(self, following: int) -> None:
        """On the server: note for a checkpoint what the plan was so far. following: the next round."""
        if self.context.comm.is_server:
            self.context.server.numbers[PLAN] = self._check_number(following)

    def _check_plan(self) -> None:
        """Compare what the checkpoint says of the plan with this one.

        Raises:
            CheckpointError: they differ.
        """
        found = self.context.server.numbers.get(PLAN)
        if found is not None and int(found) != self._check_number(self.context.round):
            raise CheckpointError(
                "the checkpoint is of asynchronous rounds with another plan of who trains when: the clients, their "
                "rows or this machine's arithmetic are not those of before; begin anew with `--resume never`"
            )

    def _check_number(self, versions: int) -> int:
        return int(self.plan.digest(versions)[:12], 16)
