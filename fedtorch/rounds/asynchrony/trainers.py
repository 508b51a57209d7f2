"""Chooses what trains clients on a rank."""

from __future__ import annotations

from fedtorch.rounds.asynchrony.jobs import LiveJobs
from fedtorch.rounds.asynchrony.live import LiveTrainer
from fedtorch.rounds.asynchrony.training import JobTrainer
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.local_training import ClientTrainer


def trainer_for(context: RoundContext) -> ClientTrainer:
    """Make what trains clients on this rank: cohorts, the jobs of a plan, or jobs as they come."""
    jobs = context.jobs
    if jobs is None:
        return ClientTrainer(context)
    return LiveTrainer(context, jobs) if isinstance(jobs, LiveJobs) else JobTrainer(context, jobs)
