"""Remarks worth knowing before hours of training, and no errors: a line each, logged as a new run starts."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.config.schema import CheckpointConfig
from fedtorch.rounds.placement import Placement
from fedtorch.setup.plan import Plan
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.own_overview import remarks as of_own_rows
from fedtorch.tasks.splits import has_rows, with_rows
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


def about_evaluation(plan: Plan) -> Iterator[str]:
    """Evaluations that will have no rows, and a patience that is never used up."""
    if plan.config.paradigm == "stats":
        return
    config, rounds = plan.config.eval, plan.config.rounds
    privacy = plan.config.privacy
    hidden = privacy.kind != "none" and "scores" not in privacy.reveal and privacy.eval is None
    keys = ("split", "final_split") if config.every and rounds else ("final_split",)
    for key in keys:
        split = getattr(config, key)
        what = "no best round is chosen" if key == "split" else "the run ends without scores"
        if not plan.task.metrics() and not plan.task.evaluates_loss:
            continue  # it measures nothing
        if not has_rows(plan.task, split):
            others = ", ".join(with_rows(plan.task)) or "no split"
            yield f"eval.{key} is {split}, of which no client has a row, so {what}; there are rows of {others}"
        elif hidden and not has_rows(plan.task, split, unowned=True):
            yield (
                f"eval.{key} is {split}, of which only clients that train have rows, and with privacy.kind "
                f"{privacy.kind} their scores are not told, so {what}; keep rows without an owner, or add scores to "
                "privacy.reveal"
            )
    evaluations = -(-rounds // config.every) if config.every else 0
    if config.patience is not None and config.patience >= evaluations:
        yield f"eval.patience is {config.patience} but there are {evaluations} evaluations, so it never ends the run"


def about_rates(plan: Plan) -> Iterator[str]:
    """Rates of 0, at which every round leaves all as it was: a control in a sweep, or a slip."""
    config = plan.config
    if not config.rounds:
        return
    if plan.algorithm.limits.trains_clients and not isinstance(plan.algorithm, MessageAlgorithm):
        if all(hp.lr == 0 and not hp.relative_step for hp in plan.settings):
            yield "client.lr is 0 for all clients, so their training changes nothing"
    server = config.server
    if config.paradigm == "federated" and server.optimizer != "none" and server.lr == 0:
        yield f"server.lr is 0 and server.optimizer {server.optimizer}, so the server never takes a step"


def about_neutral(plan: Plan) -> Iterator[str]:
    """Keys that another key's value leaves without an effect, which a sweep over that one may come past."""
    clients = plan.config.clients
    if not plan.config.rounds:
        return
    if any(hp.accumulation_rule == "spill" for hp in plan.settings) and not any(hp.spills for hp in plan.settings):
        yield (
            "client.accumulation_rule is spill and client.accumulation 1, so no group of micro-batches is incomplete "
            "and nothing spills"
        )
    saving, usual = plan.config.checkpoint, CheckpointConfig()
    for key in ("cost", "lose") if saving.every != "auto" else ():
        if (value := getattr(saving, key)) != getattr(usual, key):
            yield f"checkpoint.{key} is {value:g} and checkpoint.every {saving.every}, so nothing goes by the clock"
    if clients.sampling == "numpy_round_seed" and clients.per_round == "all":
        yield "clients.sampling is numpy_round_seed and clients.per_round all, so nobody is drawn"
