"""Rules about clients and how a round draws them."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.rounds.buffer import late_in
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.tasks.base import SERVER


def clients_are_the_tasks(plan: Plan) -> None:
    """Refuse names in `per_client` that are nobody's, and rounds of more clients than there are."""
    if plan.config.per_client:
        names = [*plan.clients.names()]
        plan.config.check_client_names([*names, SERVER] if plan.training.server_examples() else names)
    plan.config.check_client_numbers(len(plan.clients))


def every_draw_counts(plan: Plan) -> None:
    """Refuse weights that do not count draws, where one round may draw a client more than once."""
    weighting = plan.algorithm.limits.weighting
    if plan.sampler.with_replacement and weighting != "equal":
        raise ConfigError(
            f"clients.sampling is {type(plan.sampler).__name__}, which draws with replacement, and algorithm.weights "
            f"is {weighting}, which does not count draws; set algorithm.weights to equal (1/K per draw, as in FedProx)"
        )


def all_clients_take_part_where_they_must(plan: Plan) -> None:
    """Refuse rounds of some clients where the algorithm needs all of them."""
    reason, clients = plan.algorithm.limits.why_not_sampled, plan.config.clients
    if not reason:
        return
    for key, value, wanted in (
        ("per_round", clients.per_round, ("all", len(plan.clients))),
        ("sampling", type(plan.sampler).__name__, ("Uniform",)),
        ("extra", clients.extra, (0,)),
        ("deadline", clients.deadline, (None,)),
        ("replay", clients.replay, (None,)),
    ):
        if value not in wanted:
            raise ConfigError(
                f"clients.{key} is {value} but algorithm.name is {plan.config.algorithm_name}, which {reason}, so all "
                f"of them take part in every round; remove clients.{key}"
            )


def the_sampler_draws_clients(plan: Plan) -> None:
    """Refuse a sampler that cannot draw the first round's clients."""
    assert plan.first_cohort or plan.sampler.may_be_empty


def clients_may_be_late(plan: Plan) -> None:
    """Refuse late clients where lateness would tell of data, draws repeat, or ranks train in lock step."""
    config = plan.config.clients
    set_keys = [key for key in ("extra", "deadline", "replay") if getattr(config, key)]
    if not set_keys:
        return
    key = f"clients.{set_keys[0]} is {getattr(config, set_keys[0])}"
    if plan.config.privacy.kind != "none":
        raise ConfigError(f"{key} but privacy.kind is client, and who is late depends on clients' data; remove it")
    if plan.sampler.with_replacement:
        raise ConfigError(
            f"{key} but clients.sampling is {type(plan.sampler).__name__}, which draws clients more than once; remove "
            "it, or set clients.sampling to uniform"
        )
    if max(plan.topology.sizes) > 1:
        raise ConfigError(
            f"{key} but system.ranks_per_worker is {plan.config.system.ranks_per_worker}, whose ranks must come to one "
            "end of a client's training; remove it, or set system.ranks_per_worker to 1"
        )
    if config.replay is not None:
        late_in(config.replay)


SUBJECT = Subject(
    "Clients",
    of_plan=(
        clients_are_the_tasks,
        every_draw_counts,
        all_clients_take_part_where_they_must,
        the_sampler_draws_clients,
        clients_may_be_late,
    ),
)
