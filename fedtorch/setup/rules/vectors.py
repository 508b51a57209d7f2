"""Rules about what is exchanged, which need the model's parameters."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.train.engine import Engine


def something_is_shared(plan: Plan, engine: Engine) -> None:
    """Refuse an algorithm that exchanges vectors where no parameter is shared."""
    if plan.algorithm.travels.vectors and engine.shared.size == 0:
        raise ConfigError(
            "partition leaves no shared parameter, so there is nothing to exchange; share some, or set paradigm: local"
        )


def what_travels_is_there(plan: Plan, engine: Engine) -> None:
    """Refuse an algorithm that sends parameters which the model does not have."""
    layout = plan.algorithm.travels.laid_out(engine.shared)
    for client, _ in plan.first_cohort or [(plan.clients[0], 1)]:
        plan.algorithm.places("sent", layout, client.name, 0)


SUBJECT = Subject(
    "What is exchanged",
    of_engine=(
        something_is_shared,
        what_travels_is_there,
    ),
)
