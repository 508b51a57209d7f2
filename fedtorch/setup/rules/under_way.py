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
    """Refuse privacy of clients, where files of single clients tell who was drawn."""
    if plan.config.privacy.kind == "client":
        raise ConfigError(
            f"{_key(plan)} is set but privacy.kind is client, and files of single clients tell who was drawn; set "
            f"{_key(plan)} to null"
        )


def a_round_has_several_steps(plan: Plan) -> None:
    """Refuse shared noise, where a silo adds up one gradient a round: nothing lies between two steps."""
    if plan.config.privacy.kind == "record" and plan.config.privacy.noise_at == "shared":
        raise ConfigError(
            f"{_key(plan)} is set but privacy.noise_at is shared, where a round is one sum and has nothing to "
            f"save before its end; set {_key(plan)} to null"
        )


def _key(plan: Plan) -> str:
    return f"checkpoint.every_{'seconds' if plan.config.checkpoint.every_steps is None else 'steps'}"


SUBJECT = Subject(
    "Saves inside a round",
    applies=lambda plan: plan.config.checkpoint.saves_steps,
    of_plan=(
        a_trainer_saves_for_itself,
        all_that_steps_change_is_saved,
        nothing_tells_who_trained,
        a_round_has_several_steps,
    ),
)
