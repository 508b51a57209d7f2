"""Rules about parties that sign with keys of their own."""

from __future__ import annotations

import math

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.sums import why_not_ahead
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.core.overrides import overrides
from fedtorch.privacy.secure_sum.terms import threshold_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject


def each_party_is_one_rank(plan: Plan) -> None:
    """Refuse clients that are not pinned to ranks of one process each: nobody could say whose process it is."""
    check_parties(plan.config)


def updates_wait_until_all_have_signed(plan: Plan) -> None:
    """Refuse sums that begin early, for which updates leave before all have signed which weights they got."""
    check_order(plan.config)


def the_threshold_allows_one_list(plan: Plan) -> None:
    """Refuse a secure sum whose threshold lets a server name two lists of survivors, each to enough silos."""
    privacy, count = plan.config.privacy, len(plan.topology.workers)
    if privacy.secure_sum is None:
        return
    needed = threshold_of(privacy.secure_sum.threshold, count)
    if 2 * needed <= count + privacy.colluders:
        least = (count + privacy.colluders) // 2 + 1
        raise ConfigError(
            f"trust.members is set but privacy.secure_sum.threshold {privacy.secure_sum.threshold:g} of {count} silos "
            f"comes to {needed} answers, which with {privacy.colluders} silos that work with the server "
            f"(privacy.colluders) can be had twice, for two sums of one round; set the threshold to "
            f"{math.ceil(100 * least / count) / 100:g} or more"
        )


def checked_rounds_are_sums(plan: Plan) -> None:
    """Refuse checks of rounds that are no weighted sum of whole vectors, or whose weights wait for other clients."""
    config, algorithm = plan.config, plan.algorithm
    name = config.algorithm_name or type(algorithm).__name__
    why, instead = "trust.verify is set but ", "choose another algorithm, or remove trust.verify"
    if not config.adds_up:
        raise ConfigError(f"{why}paradigm is {config.paradigm}, where no server adds up updates; remove trust.verify")
    if isinstance(algorithm, MessageAlgorithm):
        raise ConfigError(f"{why}algorithm.name is {name}, whose clients send compressed messages; {instead}")
    if reason := why_not_ahead(algorithm):
        raise ConfigError(f"{why}algorithm.name is {name}, which {reason}; {instead}")
    if algorithm.limits.trains_server:
        raise ConfigError(f"{why}algorithm.name is {name}, whose server trains, which silos cannot repeat; {instead}")
    if algorithm.travels.varying or overrides(type(algorithm), "places", Algorithm):
        raise ConfigError(f"{why}algorithm.name is {name}, of whose vectors only parts travel; {instead}")
    if config.exchange.bits != 32:
        raise ConfigError(f"{why}exchange.bits is {config.exchange.bits}, with which parts are no sums; remove one")
    if plan.sampler.with_replacement:
        raise ConfigError(
            f"{why}clients.sampling is {type(plan.sampler).__name__}, which draws clients more than once; set it to "
            "uniform"
        )


def a_leaf_can_be_stepped_alone(plan: Plan) -> None:
    """Refuse to check a share of the leaves where the server's step of one depends on others."""
    config, algorithm = plan.config, plan.algorithm
    if config.trust.verify == "all":
        return
    why = f"trust.verify is {config.trust.verify} but "
    name = config.algorithm_name or type(algorithm).__name__
    if overrides(type(algorithm), "server_update", Algorithm) and not algorithm.limits.steps_each_number:
        raise ConfigError(f"{why}algorithm.name is {name}, whose step needs whole vectors; set trust.verify to all")


def the_server_of_checked_rounds_only_serves(plan: Plan) -> None:
    """Refuse checks where the server has clients: it would know the key by which silos check it."""
    if any(0 in ranks for ranks in plan.topology.workers):
        raise ConfigError(
            "trust.verify is set but the server has clients of its own (rank 0 in system.pinned), so that it would be "
            "one of those who check it; give them to a rank of their own"
        )


def check_parties(config: Config) -> None:
    """As `each_party_is_one_rank`; asked before ranks meet too, when nothing is built yet."""
    system = config.system
    if system.placement != "pinned" or system.pinned_to != "rank" or system.ranks_per_worker != 1:
        raise ConfigError(
            f"trust.members is set but system.placement is {system.placement} and pinned_to {system.pinned_to}, with "
            f"{system.ranks_per_worker} ranks per worker; a party is one rank with the data that are pinned to it: set "
            "`placement: pinned`, `pinned_to: rank`, `ranks_per_worker: 1` and `pinned: {north: 1, south: 2}`"
        )


def check_order(config: Config) -> None:
    """As `updates_wait_until_all_have_signed`; asked before ranks meet too."""
    if config.system.sum_scale == "previous":
        raise ConfigError(
            "trust.members is set but system.sum_scale is previous, with which updates leave before all parties have "
            "signed which weights they got; set system.sum_scale to reports"
        )


SUBJECT = Subject(
    "Parties with keys of their own",
    applies=lambda plan: plan.config.trust.members is not None,
    of_plan=(each_party_is_one_rank, updates_wait_until_all_have_signed, the_threshold_allows_one_list),
)
CHECKED = Subject(
    "Sums and steps that silos check",
    applies=lambda plan: plan.config.trust.verify is not None,
    of_plan=(
        checked_rounds_are_sums,
        a_leaf_can_be_stepped_alone,
        the_server_of_checked_rounds_only_serves,
    ),
)
