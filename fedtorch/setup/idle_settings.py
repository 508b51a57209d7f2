"""Settings that would do nothing: a mistake of the user's is refused, what may be meant is remarked on.

One function per rule, in the order of `RULES`. Those that a section's own keys are enough for are in the section's
class. What a sweep or a layer may well set to nothing, such as `weight_decay: 0` beside `no_decay`, is let be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.tasks.base import Task

_USUAL = ("train", "dev", "test")


def check_idle(plan: Plan) -> None:
    """Apply every rule.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for rule in RULES:
        rule(plan)


def splits_are_the_tasks(plan: Plan) -> None:
    """A split by another name has no rows, so that nothing would be evaluated."""
    for key in ("split", "final_split"):
        split = getattr(plan.config.eval, key)
        if split in _USUAL or any(split in sizes for sizes in plan.task.manifest().values()):
            continue
        known = splits_of(plan.task)
        raise ConfigError(
            f"eval.{key} is {split} but the task `{plan.config.task_name}` has the splits "
            f"{', '.join(known) or 'of nobody'}; set eval.{key} to one of them"
        )


def who_waits_for_scores_gets_some(plan: Plan) -> None:
    """Without rows of `eval.split` no score comes by which to stop or to choose."""
    config = plan.config.eval
    if not config.every or not plan.config.rounds or _has_rows(plan.task, config.split):
        return
    for key, value, plain in (("patience", config.patience, None), ("best", config.best, "together")):
        if value != plain:
            raise ConfigError(
                f"eval.{key} is {value} but no client has a row of eval.split, which is {config.split}, so there is no "
                f"score to go by; set eval.split to one of {', '.join(_with_rows(plan.task)) or 'none'}, or eval.{key} "
                f"to {'null' if plain is None else plain}"
            )


RULES: tuple[Callable[[Plan], None], ...] = (
    splits_are_the_tasks,
    who_waits_for_scores_gets_some,
)


def about_evaluation(plan: Plan) -> Iterator[str]:
    """Evaluations that will have no rows, and a patience that is never used up."""
    config, rounds = plan.config.eval, plan.config.rounds
    hidden = plan.config.privacy.kind != "none" and "scores" not in plan.config.privacy.reveal
    keys = ("split", "final_split") if config.every and rounds else ("final_split",)
    for key in keys:
        split = getattr(config, key)
        what = "no best round is chosen" if key == "split" else "the run ends without scores"
        if not _has_rows(plan.task, split):
            others = ", ".join(_with_rows(plan.task)) or "no split"
            yield f"eval.{key} is {split}, of which no client has a row, so {what}; there are rows of {others}"
        elif hidden and not _has_rows(plan.task, split, unowned=True):
            yield (
                f"eval.{key} is {split}, of which only clients that train have rows, and with privacy.kind client "
                f"their scores are not told, so {what}; keep rows without an owner, or add scores to privacy.reveal"
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
    if clients.sampling == "numpy_round_seed" and clients.per_round == "all":
        yield "clients.sampling is numpy_round_seed and clients.per_round all, so nobody is drawn"


def splits_of(task: Task) -> list[str]:
    """Every split that an entry of the task's manifest names, in the order in which they first occur."""
    return list(dict.fromkeys(split for sizes in task.manifest().values() for split in sizes))


def _with_rows(task: Task) -> list[str]:
    return list(dict.fromkeys(split for sizes in task.manifest().values() for split, rows in sizes.items() if rows))


def _has_rows(task: Task, split: str, *, unowned: bool = False) -> bool:
    """unowned: of somebody who does not train."""

    def counts(sizes: Mapping[str, int]) -> bool:
        return bool(sizes.get(split)) and not (unowned and sizes.get("train"))

    return any(map(counts, task.manifest().values()))
