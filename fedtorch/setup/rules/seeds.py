"""Rules about weights that follow from sums over directions (`fedkseed`, `decomfl`)."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.train.engine import Engine


def a_worker_is_one_rank(plan: Plan) -> None:
    """Refuse workers of several ranks, of which each would measure losses of its own."""
    if max(plan.topology.sizes) > 1:
        raise ConfigError(
            f"system.ranks_per_worker is {plan.config.system.ranks_per_worker} but algorithm.name is "
            f"{plan.config.algorithm_name}, whose losses are measured by one rank; set it to 1"
        )


def nothing_is_kept_private(plan: Plan, engine: Engine) -> None:
    """Refuse private parameters, which have no place in any direction."""
    if engine.private.size:
        raise ConfigError(
            f"partition.private is set but algorithm.name is {plan.config.algorithm_name}, whose directions are of "
            f"shared parameters alone; remove partition.private, or freeze {engine.private.names[0]!r} and the like"
        )


SUBJECT = Subject(
    "Sums over directions",
    applies=lambda plan: plan.algorithm.travels.model is not None,
    of_plan=(a_worker_is_one_rank,),
    of_engine=(nothing_is_kept_private,),
)
