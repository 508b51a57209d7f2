"""Rules about parties that sign with keys of their own."""

from __future__ import annotations

from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject


def each_party_is_one_rank(plan: Plan) -> None:
    """Refuse clients that are not pinned to ranks of one process each: nobody could say whose process it is."""
    check_parties(plan.config)


def updates_wait_until_all_have_signed(plan: Plan) -> None:
    """Refuse sums that begin early, for which updates leave before all have signed which weights they got."""
    check_order(plan.config)


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
    of_plan=(each_party_is_one_rank, updates_wait_until_all_have_signed),
)
