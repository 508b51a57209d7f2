"""Remarks worth knowing before hours of training, and no errors: a line each, logged as a new run starts."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from fedtorch.rounds.placement import Placement
from fedtorch.setup.plan import Plan
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.own_overview import remarks as of_own_rows
from fedtorch.train.engine import Engine

# With more clients than this, a rank does not read all its clients' files before the first round.
CHECKED_CLIENTS = 100


def about_metrics(plan: Plan) -> Iterator[str]:
    """Where scores of single examples are asked for: the metrics that have none."""
    single, known = set(plan.task.single_metrics()), plan.task.metrics()
    without = [metric for metric in known if metric not in single]
    if plan.config.eval.per_example and without:
        shown = ", ".join(without[:3]) + (", ..." if len(without) > 3 else "")
        yield f"eval.per_example: {len(without)} of {len(known)} metrics are no means over examples: {shown}"


def about_data(plan: Plan, placement: Placement, rank: int) -> Iterator[str]:
    """Remarks of the task on the clients that live here; reads their files.

    Raises:
        DataError: one is unusable, so that a malformed line shows before the first round.
    """
    here = {worker for worker, ranks in enumerate(plan.topology.workers) if rank in ranks}
    found = (name for name, worker in placement.evaluators.items() if worker in here) if here else iter(())
    mine = [*islice(found, CHECKED_CLIENTS + 1)]  # there may be a million
    if len(mine) > CHECKED_CLIENTS:
        return
    if isinstance(plan.task, OwnTask):
        yield from of_own_rows(plan.task, mine)
    for name in mine:
        if not isinstance(plan.task, OwnTask) and (remark := plan.task.check(name)):
            yield f"{name}: {remark}"
        yield from _about_lengths(plan, name)


def _about_lengths(plan: Plan, client: str) -> Iterator[str]:
    """Where micro-batches have a budget of tokens: how many of a client's examples are above it."""
    budget = plan.config.client_for(client).max_tokens_per_batch
    if budget is None or not plan.task.manifest()[client].get("train"):
        return
    lengths = [sum(each) for each in plan.task.example_lengths(plan.task.load(client, "train"))]
    if above := sum(length > budget for length in lengths):
        yield (
            f"{client}: {above} of {len(lengths)} examples are longer than client.max_tokens_per_batch {budget}, the "
            f"longest has {max(lengths)} tokens; each is a micro-batch of its own"
        )


def about_decay(plan: Plan, engine: Engine) -> Iterator[str]:
    """The patterns of `no_decay` that match no trained parameter: everything there would decay."""
    server = plan.config.server
    patterns = {pattern for hp in plan.settings if hp.weight_decay for pattern in hp.no_decay}
    patterns |= set(server.no_decay if server.weight_decay else ())
    for pattern in sorted(patterns):
        if not any(fnmatchcase(name, pattern) for name in engine.trained_names):
            yield f"no_decay: the pattern {pattern!r} matches no parameter"
