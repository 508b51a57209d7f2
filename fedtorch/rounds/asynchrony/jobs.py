"""The jobs of a run by their plan, and the names under which their updates travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedtorch.config.asynchrony import AsyncConfig
from fedtorch.config.schema import Config
from fedtorch.core.client import Client
from fedtorch.core.clients import Clients
from fedtorch.rounds.asynchrony.arrivals_file import replayed_plan
from fedtorch.rounds.asynchrony.durations import durations
from fedtorch.rounds.asynchrony.federation import Federation
from fedtorch.rounds.asynchrony.plan import AsyncPlan, Job, make_plan
from fedtorch.train.settings import ClientConfig


@dataclass(frozen=True)
class Jobs:
    """The plan of a run. A client may train twice before its first update counts, so updates have the jobs' names."""

    settings: AsyncConfig
    """the section `async`"""
    plan: AsyncPlan
    """who trains when, from which version"""
    head: str
    """how the names begin; no client's name begins so"""
    federation: Federation | None = None
    """by the real clock: who trains and has arrived so far; there is no plan then"""
    _open: dict[str, Job] = field(default_factory=dict)
    """job's name -> job, of the buffer that closes next"""

    @classmethod
    def of(cls, config: Config, clients: Clients) -> Jobs | None:
        """The jobs that a config describes; None: its rounds wait for their clients.

        Raises:
            ConfigError: there are fewer clients than train at a time.
        """
        if config.asynchrony is None:
            return None
        names = [*clients.names()]
        rows = {client.name: float(_rows(config.client_for(client.name), client)) for client in clients}
        settings, seed = config.asynchrony, config.run.seed
        head = "job "
        while any(name.startswith(head) for name in names):
            head = f"_{head}"
        if settings.replay is not None:
            return cls(settings, replayed_plan(settings, names, versions=config.rounds, run_seed=seed), head)
        if settings.clock.kind == "real":
            return LiveJobs(settings, AsyncPlan((), settings.buffer, 0, ()), head, Federation(settings, names, seed))
        duration = durations(settings.clock.duration, seed, rows)
        return cls(settings, make_plan(settings, names, duration, versions=config.rounds, run_seed=seed), head)

    @property
    def names(self) -> Sequence[str]:
        """Names for all jobs that are under way at a time: the number of an arrival modulo how many these are."""
        return self._of_plan

    @cached_property
    def _of_plan(self) -> tuple[str, ...]:
        return tuple(f"{self.head}{number}" for number in range(self.settings.buffer * (self.plan.max_staleness + 1)))

    def name(self, job: Job) -> str:
        """The name of a job that is not dropped."""
        assert job.number is not None
        return self.names[job.number % len(self.names)]

    def open(self, version: int) -> Sequence[Job]:
        """Begin with the buffer that makes the next version; its jobs, in the order of their numbers."""
        self._open.clear()
        self._open.update({self.name(job): job for job in self.plan.buffer(version)})
        return self.plan.buffer(version)

    def of_name(self, name: str) -> Job:
        """The job of the open buffer under that name."""
        return self._open[name]

    def client_of(self, name: str) -> str:
        """Name of the client that a report is about, which may be its own."""
        return self._open[name].client if name in self._open else name

    @cached_property
    def _buffers(self) -> dict[int, int]:
        return {job.start: job.buffer for job in self.plan.jobs if job.number is not None}

    def is_open(self, start: int, version: int) -> bool:
        """Is the job of that start in a buffer that makes a version after this one?"""
        return version <= self._buffers.get(start, -1)

    @property
    def patience(self) -> int:
        """How many buffers without an update are as many arrivals as all places of a synchronous round."""
        return -(-self.settings.concurrent // self.settings.buffer)


@dataclass(frozen=True)
class LiveJobs(Jobs):
    """The jobs of a run by the real clock, of which nothing is known before they arrive."""

    federation: Federation
    """who trains and has arrived so far"""
    _names: list[str] = field(default_factory=list)
    """see `make_names`"""

    def of_name(self, name: str) -> Job:
        """As for a plan, of those that have arrived so far."""
        if name not in self._open:
            self.open(self.federation.done)
        return self._open[name]

    def make_names(self, done: int) -> None:
        """Make as many names as jobs can be under way at a time, once what was recorded is known.

        done: versions that were made.
        """
        recorded = max(0, self.federation.numbers - done * self.settings.buffer)
        most = 2 * (self.settings.buffer + self.settings.concurrent) + recorded
        self._names[:] = [f"{self.head}{number}" for number in range(most)]

    @property
    def names(self) -> Sequence[str]:
        """Names for all jobs that are under way at a time."""
        return self._names

    def name(self, job: Job) -> str:
        """The name of a job until its buffer closes."""
        return self._names[self.federation.slots[job.start]]

    def is_open(self, start: int, version: int) -> bool:
        """As for a plan; those that nobody knows yet are open."""
        return self.federation.is_open(start, version)

    def open(self, version: int) -> Sequence[Job]:
        """As for a plan."""
        self._open.clear()
        self._open.update({self.name(job): job for job in self.federation.buffer(version)})
        return self.federation.buffer(version)


def _rows(hp: ClientConfig, client: Client) -> int:
    """Rows that a client's training passes over."""
    if hp.steps is not None:
        return hp.steps * hp.batch_size * hp.accumulation
    return client.sizes["train"] * (hp.epochs or 1)
