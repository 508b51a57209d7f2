"""Rules about rounds that wait for nobody (`async`)."""

from __future__ import annotations

from typing import Any

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.sums import why_not_ahead
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.core.overrides import overrides
from fedtorch.core.state_keys import WEIGHTS
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.train.attacks.settings import COLLUDING
from fedtorch.train.engine import Engine

WHY = "async is set but "


def a_server_makes_the_versions(plan: Plan) -> None:
    """Refuse paradigms without a server that adds up updates."""
    if plan.config.paradigm != "federated":
        raise ConfigError(
            f"{WHY}paradigm is {plan.config.paradigm}, where no server adds up updates; set async to null"
        )


def the_scale_is_known_before_all_are_done(plan: Plan) -> None:
    """Refuse a sum whose scale waits for the reports of all, but for messages in fewer bits, which wait for it too."""
    if (scale := plan.config.system.sum_scale) == "reports" and plan.config.exchange.bits == 32:
        raise ConfigError(f"{WHY}system.sum_scale is {scale}; set system.sum_scale to previous or public")


def as_many_clients_as_train_at_a_time(plan: Plan) -> None:
    """Refuse more places than clients."""
    settings, count = _settings(plan), len(plan.clients)
    if settings.concurrent > count:
        raise ConfigError(
            f"async.concurrent is {settings.concurrent} but the task `{plan.config.task_name}` has {count} clients; "
            f"set async.concurrent to at most {count}"
        )


def every_client_has_a_duration(plan: Plan) -> None:
    """Refuse a table of durations that lacks a client, or has a stranger."""
    duration = _settings(plan).clock.duration
    if duration.kind != "table":
        return
    key = "async.clock.duration.seconds"
    for name in plan.clients.names():
        if name not in duration.seconds:
            raise ConfigError(f"{key} has no seconds of the client `{name}`; add them")
    for name in duration.seconds:
        if plan.clients.named(name) is None:
            raise ConfigError(
                f"{key}.{name} is set but the task `{plan.config.task_name}` has no client `{name}` that trains; "
                "remove it"
            )


def nobody_is_drawn_for_a_round(plan: Plan) -> None:
    """Refuse what draws clients for a round, or leaves out who is late in one: nobody waits for anybody."""
    clients = plan.config.clients
    usual: dict[str, tuple[Any, Any]] = {
        "per_round": (clients.per_round, "all"),
        "sampling": (clients.sampling, "uniform"),
        "extra": (clients.extra, 0),
        "deadline": (clients.deadline, None),
        "replay": (clients.replay, None),
        "min_silos": (clients.min_silos, None),
    }
    for key, (value, wanted) in usual.items():
        if value != wanted and value != {"name": wanted}:
            shown = "null" if wanted is None else wanted
            raise ConfigError(f"{WHY}clients.{key} is {value}; set clients.{key} to {shown}")
    if clients.min > _settings(plan).buffer:
        raise ConfigError(
            f"clients.min is {clients.min} but async.buffer is {_settings(plan).buffer}, so no version could count; "
            "set clients.min to at most as many"
        )


def a_buffer_is_one_sum(plan: Plan) -> None:
    """Refuse algorithms whose rounds are more than a sum of updates with weights of each client alone."""
    rule, travels = plan.algorithm, plan.algorithm.travels
    reason = ""
    if isinstance(rule, MessageAlgorithm):
        reason = "has clients that send compressed messages"
    elif (travels.vectors, travels.model, travels.varying) != ((WEIGHTS,), None, ()):
        reason = "exchanges other vectors than the weights, which belong to a version"
    elif why := why_not_ahead(rule):
        reason = why
    elif overrides(type(rule), "places", Algorithm):
        reason = "sends parts of vectors that depend on the round"
    elif rule.limits.trains_server:
        reason = "trains on the server between rounds"
    elif rule.limits.why_not_sampled:
        reason = rule.limits.why_not_sampled
    if reason:
        raise ConfigError(f"{WHY}algorithm.name is {_name(plan.config, rule)}, which {reason}; choose another one")


def nothing_is_promised(plan: Plan) -> None:
    """Refuse privacy, a secure sum, and parties that sign: each of them is about who takes part in a round."""
    privacy, trust = plan.config.privacy, plan.config.trust
    if privacy.kind != "none":
        raise ConfigError(
            f"{WHY}privacy.kind is {privacy.kind}, and who takes part depends on time and not on a known chance; set "
            "privacy.kind to none"
        )
    if privacy.secure_sum is not None:
        raise ConfigError(
            f"{WHY}privacy.secure_sum is set, whose masks need the clients of a sum before it; remove "
            "privacy.secure_sum"
        )
    if trust.members is not None:
        raise ConfigError(f"{WHY}trust.members is set, whose parties sign by rounds; remove trust.members")


def attackers_know_their_own_updates(plan: Plan) -> None:
    """Refuse attackers who know the updates of a round."""
    if (kind := plan.config.attack.kind) in COLLUDING:
        raise ConfigError(
            f"{WHY}attack.kind is {kind}, which is made of what others send in a round; choose another kind"
        )


def a_client_trains_on_one_rank(plan: Plan) -> None:
    """Refuse workers of several ranks, and pairs of them."""
    if plan.config.system.ranks_per_worker != 1:
        raise ConfigError(
            f"{WHY}system.ranks_per_worker is {plan.config.system.ranks_per_worker}; set system.ranks_per_worker to 1"
        )


def a_training_is_known_by_its_version(plan: Plan) -> None:
    """Refuse local training that counts the run's rounds."""
    for hp in plan.settings:
        if hp.schedule_span == "run":
            raise ConfigError(
                f"{WHY}client.schedule_span is run, and how often a client trains depends on the others; set "
                "client.schedule_span to round"
            )
    if plan.training.refers_to == "round":
        raise ConfigError(f"{WHY}the task's reference is the model of the round; choose the one of the start")


def the_server_keeps_weights_alone(plan: Plan, engine: Engine) -> None:
    """Refuse algorithms whose server keeps vectors that belong to a version."""
    if kept := plan.algorithm.kept(engine.shared, engine.private).server:
        raise ConfigError(
            f"{WHY}algorithm.name is {_name(plan.config, plan.algorithm)}, whose server keeps {', '.join(kept)}, which "
            "belongs to a version; choose another one"
        )


def _settings(plan: Plan) -> Any:
    assert plan.config.asynchrony is not None
    return plan.config.asynchrony


def _name(config: Config, rule: Algorithm) -> str:
    return config.algorithm_name or type(rule).__name__


SUBJECT = Subject(
    "Rounds that wait for nobody",
    applies=lambda plan: plan.config.asynchrony is not None,
    of_plan=(
        a_server_makes_the_versions,
        a_buffer_is_one_sum,
        nothing_is_promised,
        the_scale_is_known_before_all_are_done,
        as_many_clients_as_train_at_a_time,
        every_client_has_a_duration,
        nobody_is_drawn_for_a_round,
        attackers_know_their_own_updates,
        a_client_trains_on_one_rank,
        a_training_is_known_by_its_version,
    ),
    of_engine=(the_server_keeps_weights_alone,),
)
