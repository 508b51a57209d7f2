"""The rules about what is exchanged, which need the model's parameters: called once there is an engine, as `checks`."""

from __future__ import annotations

from collections.abc import Callable

from fedtorch.core.errors import ConfigError
from fedtorch.rounds.context import keeps_state
from fedtorch.setup.plan import Plan
from fedtorch.train.engine import Engine


def check_vectors(plan: Plan, engine: Engine) -> None:
    """Apply every rule.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for rule in RULES:
        rule(plan, engine)


def something_is_shared(plan: Plan, engine: Engine) -> None:
    """An algorithm that exchanges vectors has parameters to exchange; the engine knows which those are."""
    if plan.algorithm.exchanged_vectors and engine.shared.size == 0:
        raise ConfigError(
            "partition leaves no shared parameter, so there is nothing to exchange; share some, or set paradigm: local"
        )


def what_travels_is_there(plan: Plan, engine: Engine) -> None:
    """An algorithm that sends parts of the shared parameters finds them in the model; it raises ConfigError if not."""
    for client, _ in plan.first_cohort or [(plan.clients[0], 1)]:
        plan.algorithm.sent_places(engine.shared, client.name, 0)


def models_of_clients_have_the_present_base(plan: Plan, engine: Engine) -> None:
    """Where the server changes what clients do not keep, weights of an earlier round fit no longer."""
    config = plan.config.eval
    if not plan.algorithm.varying_vectors:
        return
    for key, value, other in (("point", config.point, "trained"), ("best", config.best, "per_client")):
        if value == other:
            raise ConfigError(
                f"eval.{key} is {value} but algorithm.name is {plan.config.algorithm_name}, which changes the base "
                "that a client's own weights belong to; "
                f"set eval.{key} to {'received' if key == 'point' else 'together'}"
            )


def evaluations_can_wait(plan: Plan, engine: Engine) -> None:
    """An evaluation that is over only after the next training finds server and clients as they were before it."""
    if not plan.config.eval.overlap:
        return
    rule, name = plan.algorithm, plan.config.algorithm_name
    for is_so, why in (
        (not rule.exchanged_vectors, "clients send nothing, so no round waits for another's scores"),
        (
            not rule.limits.trains_clients,
            f"with algorithm.name {name} no client trains, so no round is waited for",
        ),
        (keeps_state(plan.config, rule, engine.private), "clients keep a state, which the next training changes"),
    ):
        if is_so:
            raise ConfigError(f"eval.overlap is true but {why}; set eval.overlap to false")


RULES: tuple[Callable[[Plan, Engine], None], ...] = (
    something_is_shared,
    what_travels_is_there,
    models_of_clients_have_the_present_base,
    evaluations_can_wait,
)
