"""Rules of `checkpoint.every_steps` and `every_seconds`: what a training has that cannot be saved while it runs."""

from __future__ import annotations

from fedtorch.algorithms.sums import why_not_saved
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject


def a_trainer_saves_for_itself(plan: Plan) -> None:
    """Refuse trainers from outside: what they hold while they train is theirs."""
    for hp in plan.settings:
        if hp.trainer is not None:
            raise ConfigError(
                f"{_key(plan)} is set but client.trainer is {hp.trainer.name}, whose state while it trains is its own; "
                f"set {_key(plan)} to null, or remove client.trainer"
            )


def all_that_steps_change_is_saved(plan: Plan) -> None:
    """Refuse algorithms whose steps change something that no save would have."""
    if reason := why_not_saved(plan.algorithm):
        name = plan.config.algorithm_name or type(plan.algorithm).__name__
        raise ConfigError(
            f"{_key(plan)} is set but algorithm.name is {name}, which {reason}; set {_key(plan)} to null, or choose "
            "another algorithm"
        )


def nothing_tells_who_trained(plan: Plan) -> None:
    """Refuse privacy: noised steps have a ledger of their own, and files of single clients tell who was drawn."""
    if plan.config.privacy.kind != "none":
        raise ConfigError(
            f"{_key(plan)} is set but privacy.kind is {plan.config.privacy.kind}: noised steps must not be taken up "
            f"half way, and files of clients tell who was drawn; set {_key(plan)} to null"
        )


def _key(plan: Plan) -> str:
    return f"checkpoint.every_{'seconds' if plan.config.checkpoint.every_steps is None else 'steps'}"


SUBJECT = Subject(
    "Saves inside a round",
    applies=lambda plan: plan.config.checkpoint.saves_steps,
    of_plan=(a_trainer_saves_for_itself, all_that_steps_change_is_saved, nothing_tells_who_trained),
)
