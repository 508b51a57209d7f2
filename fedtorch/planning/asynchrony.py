"""Says who trains when in rounds that wait for nobody, before anything is trained: the plan, and how busy ranks are."""

from __future__ import annotations

from fedtorch.rounds.asynchrony.arrivals_file import NAME
from fedtorch.rounds.asynchrony.durations import US_PER_S
from fedtorch.rounds.asynchrony.plan import AsyncPlan
from fedtorch.rounds.asynchrony.schedule import Workers, busy_share
from fedtorch.rounds.context import keeps_state, trains_at_home
from fedtorch.rounds.placement import costs
from fedtorch.rounds.topology import Topology
from fedtorch.setup.build import BuiltRun

WORKERS = (1, 2, 4, 8)
"""Numbers of workers of which the share of busy time is shown."""


def describe_plan(built: BuiltRun) -> str:
    """The block of `--dry-run` about asynchronous rounds; empty where rounds wait for their clients."""
    if built.jobs is None or not built.config.rounds:
        return ""
    plan, settings = built.jobs.plan, built.jobs.settings
    if built.jobs.federation is not None:
        return (
            f"asynchronous rounds: {built.config.rounds} versions of {settings.buffer} updates, {settings.concurrent} "
            f"clients at a time, by the real clock: who trains when is known afterwards, from {NAME}"
        )
    stale = [job.staleness for version in range(plan.versions) for job in plan.buffer(version)]
    dropped = sum(job.number is None for version in range(plan.versions) for job in plan.arrivals(version))
    late = f", {dropped} dropped" if settings.max_staleness is not None else ""
    busy = "  ".join(f"{number} {share:.2f}" for number, share in busy_shares(built, plan).items())
    return "\n".join(
        [
            f"asynchronous rounds: {plan.versions} versions of {settings.buffer} updates, {settings.concurrent} "
            "clients at a time",
            f"  virtual clock: the last version after {plan.instants[-1] / US_PER_S:,.1f} s",
            f"  staleness: {sum(stale) / len(stale):.2f} on average, {max(stale)} at most{late}",
            f"  versions kept: at most {plan.most_live}, the newest included",
            f"  share of time busy, by number of workers: {busy}",
            f"  digest of the plan: {plan.digest()[:16]}",
        ]
    )


def busy_shares(built: BuiltRun, plan: AsyncPlan) -> dict[int, float]:
    """Number of workers -> share of their time in which they train, by clients' expected costs."""
    each = costs(built.config, built.training, built.clients)
    has_homes = trains_at_home(built.config) or keeps_state(built.config, built.algorithm, built.engine)
    found = {}
    for number in WORKERS:
        homes = Topology(number, True, 1).homes(each) if has_homes else None
        found[number] = busy_share(plan, Workers(number, each, homes))
    return found
