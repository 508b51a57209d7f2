"""Rules about evaluation: metrics, splits, and what is chosen by them."""

from __future__ import annotations

from fedtorch.comm.wire import KEY
from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import LOSS, RECEIVED
from fedtorch.rounds.context import keeps_state
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.tasks.splits import has_rows, splits_of, with_rows
from fedtorch.train.engine import Engine

_USUAL = ("train", "dev", "test")


def metrics_can_travel(plan: Plan) -> None:
    """Refuse names of metrics that cannot be sent, or that are the loss's."""
    name = plan.config.task_name
    for metric in plan.task.metrics():
        if not KEY.fullmatch(f"{RECEIVED}{metric}"):
            raise ConfigError(
                f"the task `{name}` measures {metric!r}; rename it so that {RECEIVED}{metric} matches {KEY.pattern}"
            )
        if metric == LOSS:
            raise ConfigError(f"the task `{name}` measures `{LOSS}`, which every evaluation adds itself; rename it")


def single_examples_have_scores(plan: Plan) -> None:
    """Refuse scores of single examples where no metric is a mean over examples."""
    if plan.config.eval.per_example and not plan.task.single_metrics():
        raise ConfigError(
            f"eval.per_example is true but no metric of the task `{plan.config.task_name}` is a mean over examples; "
            "set it to false"
        )


def the_choosing_metric_is_measured(plan: Plan) -> None:
    """Refuse to choose the best model by a metric that the task does not measure."""
    chosen, known = plan.config.eval.select_by, (*plan.task.metrics(), LOSS)
    if chosen is not None and chosen not in known:
        raise ConfigError(
            f"eval.select_by is {chosen} but the task `{plan.config.task_name}` measures {', '.join(known)}"
        )


def splits_are_the_tasks(plan: Plan) -> None:
    """Refuse splits that the task does not have: nothing would be evaluated."""
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
    """Refuse to stop or to choose by scores where no client has a row of `eval.split`."""
    config = plan.config.eval
    if not config.every or not plan.config.rounds or has_rows(plan.task, config.split):
        return
    for key, value, plain in (("patience", config.patience, None), ("best", config.best, "together")):
        if value != plain:
            raise ConfigError(
                f"eval.{key} is {value} but no client has a row of eval.split, which is {config.split}, so there is no "
                f"score to go by; set eval.split to one of {', '.join(with_rows(plan.task)) or 'none'}, or eval.{key} "
                f"to {'null' if plain is None else plain}"
            )


def models_of_clients_have_the_present_base(plan: Plan, engine: Engine) -> None:
    """Refuse clients' own weights of earlier rounds where the server changes the base that they belong to."""
    config = plan.config.eval
    if not plan.algorithm.travels.varying:
        return
    for key, value, other in (("point", config.point, "trained"), ("best", config.best, "per_client")):
        if value == other:
            raise ConfigError(
                f"eval.{key} is {value} but algorithm.name is {plan.config.algorithm_name}, which changes the base "
                "that a client's own weights belong to; "
                f"set eval.{key} to {'received' if key == 'point' else 'together'}"
            )


def evaluations_can_wait(plan: Plan, engine: Engine) -> None:
    """Refuse `eval.overlap` where the next training changes what the evaluation reads."""
    if not plan.config.eval.overlap:
        return
    rule, name = plan.algorithm, plan.config.algorithm_name
    for is_so, why in (
        (not rule.travels.vectors, "clients send nothing, so no round waits for another's scores"),
        (
            not rule.limits.trains_clients,
            f"with algorithm.name {name} no client trains, so no round is waited for",
        ),
        (keeps_state(plan.config, rule, engine), "clients keep a state, which the next training changes"),
    ):
        if is_so:
            raise ConfigError(f"eval.overlap is true but {why}; set eval.overlap to false")


SUBJECT = Subject(
    "Evaluation",
    of_plan=(
        metrics_can_travel,
        single_examples_have_scores,
        the_choosing_metric_is_measured,
        splits_are_the_tasks,
        who_waits_for_scores_gets_some,
    ),
    of_engine=(
        models_of_clients_have_the_present_base,
        evaluations_can_wait,
    ),
)
