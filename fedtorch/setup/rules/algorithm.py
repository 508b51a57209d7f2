"""Rules about the algorithm, what it trains on and with which settings."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.core.overrides import overrides
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.tasks.base import Task


def the_one_client_sends_its_model(plan: Plan) -> None:
    """Refuse `centralized` training with an algorithm that sends nothing: no model would be evaluated."""
    if plan.config.paradigm == "centralized" and not plan.algorithm.travels.vectors:
        raise ConfigError(
            f"paradigm is centralized but algorithm.name is {plan.config.algorithm_name}, which sends nothing, so the "
            "one client's model would never be evaluated; set algorithm.name to fedavg"
        )


def someone_has_labels(plan: Plan) -> None:
    """Refuse training on labels where clients hold none."""
    config = plan.config
    if plan.task.has_labelled_clients:
        return
    if config.paradigm != "federated":
        raise ConfigError(
            f"paradigm is {config.paradigm} but the clients of the task `{config.task_name}` hold no labels, so "
            "there is nothing to train on without a server; set paradigm to federated"
        )
    if plan.algorithm.limits.needs_labels:
        raise ConfigError(
            f"algorithm.name is {config.algorithm_name} but the clients of the task `{config.task_name}` hold no "
            "labels; set algorithm.name to one that needs none, such as fedparsing"
        )


def the_algorithm_takes_the_settings(plan: Plan) -> None:
    """Refuse settings of local training, and tasks, that the algorithm rules out (`limits`, `check`)."""
    for settings in plan.settings:
        plan.algorithm.check(settings, plan.training)


def batches_by_length_have_lengths(plan: Plan) -> None:
    """Refuse batches by length for a task that does not say how long its examples are."""
    if overrides(type(plan.task), "example_lengths", Task):
        return
    for name in ("group_by_length", "max_tokens_per_batch"):
        if any(getattr(hp, name) for hp in plan.settings):
            raise ConfigError(
                f"client.{name} is set but the task `{plan.config.task_name}` does not say how long its examples are; "
                f"remove client.{name}, or define the task's `example_lengths`"
            )


SUBJECT = Subject(
    "The algorithm",
    of_plan=(
        the_one_client_sends_its_model,
        someone_has_labels,
        the_algorithm_takes_the_settings,
        batches_by_length_have_lengths,
    ),
)
