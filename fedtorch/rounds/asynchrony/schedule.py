"""Which worker trains which job of the plan between two versions: by what jobs need, not by the clock.

A job is ready when its version exists and, where clients train at home, its client's former job is done, whose state
it may begin with. Between two versions the workers first share out what the next one still needs; who would wait for
the others then takes ready jobs of later buffers, those whose buffer closes first, as far as they are done by then. Any
order gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedtorch.rounds.asynchrony.plan import AsyncPlan, Job

Wave = dict[int, list[Job]]
"""Worker -> the jobs that it trains before a version, in this order."""
Rank = Callable[[Job], tuple[int, ...]]
"""Which ready job comes first: the one with the least."""


def by_buffer(job: Job) -> tuple[int, ...]:
    """The job whose buffer closes first, then the lowest number."""
    return job.buffer, job.number or 0


@dataclass(frozen=True)
class Workers:
    """Workers that jobs are shared out among."""

    number: int
    """how many there are"""
    costs: Mapping[str, float]
    """client -> relative cost of one of its trainings"""
    homes: Mapping[str, int] | None = None
    """client -> the only worker that may train it; None: any may"""


def waves(plan: AsyncPlan, workers: Workers, *, done: int = 0, first: Rank = by_buffer) -> Iterator[Wave]:
    """Share out the jobs before each of the versions after `done`, one wave after the other; a pure function.

    Jobs of buffers before `done` are over. Jobs that were dropped are never trained.
    """
    jobs = [job for job in plan.jobs if job.number is not None and done <= job.buffer < plan.versions]
    before: dict[int, Job] = {}  # start -> the same client's job before it, which is not over and must be
    last: dict[str, Job] = {}
    for job in sorted(jobs if workers.homes is not None else (), key=lambda job: job.start):
        if job.client in last:
            before[job.start] = last[job.client]
        last[job.client] = job
    coming = sorted(jobs, key=lambda job: job.version, reverse=True)
    open_jobs: list[Job] = []
    trained: set[int] = set()
    for version in range(done, plan.versions):
        while coming and coming[-1].version <= version:
            open_jobs.append(coming.pop())
        wave = _Wave(workers, trained, before)
        for job in sorted((job for job in open_jobs if job.buffer == version), key=by_buffer):
            wave.place(job)
        wave.end = max(wave.loads)
        for job in sorted((job for job in open_jobs if job.buffer > version), key=first):
            wave.place(job)
        open_jobs = [job for job in open_jobs if job.start not in trained]
        yield wave.jobs


class _Wave:
    """Jobs between two versions."""

    def __init__(self, workers: Workers, trained: set[int], before: Mapping[int, Job]) -> None:
        self._workers, self._trained, self._before = workers, trained, before
        self.jobs: Wave = {}
        self.loads = [0.0] * workers.number
        self.end: float | None = None  # what must be done by then; None: whatever it takes

    def place(self, job: Job) -> None:
        """Give the job to a worker, if it is ready and done in time."""
        former = self._before.get(job.start)
        if former is not None and former.start not in self._trained:
            return
        homes, by_load = self._workers.homes, range(self._workers.number)
        worker = min(by_load, key=self.loads.__getitem__) if homes is None else homes[job.client]
        load = self.loads[worker] + self._workers.costs[job.client]
        if not self.is_in_time(load):
            return
        self.loads[worker] = load
        self.jobs.setdefault(worker, []).append(job)
        self._trained.add(job.start)

    def is_in_time(self, load: float) -> bool:
        """Does a worker with so much to do not keep the others waiting?"""
        return self.end is None or load <= self.end * (1 + 1e-9)


def busy_share(plan: AsyncPlan, workers: Workers) -> float:
    """Share of the workers' time in which they train, where each version waits for its wave; 1 without jobs."""
    total = span = 0.0
    for wave in waves(plan, workers):
        loads = [sum(workers.costs[job.client] for job in jobs) for jobs in wave.values()]
        total, span = total + sum(loads), span + max(loads, default=0.0)
    return total / (span * workers.number) if span else 1.0


def with_equal_costs(number: int, clients: Sequence[str]) -> Workers:
    """Workers without homes, where each training costs the same."""
    return Workers(number, dict.fromkeys(clients, 1.0))
