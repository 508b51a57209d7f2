"""Rules of `paradigm: stats`: what would make a count wrong, or tell more of a unit than is promised."""

from __future__ import annotations

from fedtorch.algorithms.counts import Counts
from fedtorch.core.errors import ConfigError
from fedtorch.privacy.secure_sum.terms import threshold_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.stats.questions import BRANCHES

MOST_CELLS = 1 << 26
"""Of a run: half a gigabyte on every rank."""


def enough_shares_are_honest(plan: Plan) -> None:
    """Refuse as many colluders as a sum may have parts, and workers without a silo: their noise would be missing."""
    config, workers, silos = plan.config, len(plan.topology.workers), len(plan.clients)
    if config.stats.privacy is None or config.privacy.secure_sum is None:
        return
    if workers > silos:
        raise ConfigError(
            f"stats.privacy.noise_at is shared but there are {workers} workers for {silos} silos, and one without a "
            f"silo has no part in a sum; start {silos + 1} ranks"
        )
    needed = threshold_of(config.privacy.secure_sum.threshold, workers)
    if config.privacy.colluders >= needed:
        raise ConfigError(
            f"privacy.colluders is {config.privacy.colluders} but a sum is opened with {needed} parts (privacy."
            f"secure_sum.threshold of {workers} workers); set privacy.colluders to {needed - 1} or less"
        )


def the_server_has_no_rows(plan: Plan) -> None:
    """Refuse a server that counts silos' rows itself, where noise is to hide them from it."""
    config = plan.config
    if config.counts_privately and config.system.server_works is True and plan.topology.num_ranks > 1:
        raise ConfigError(
            "stats.privacy is set but system.server_works is true: the server would hold rows of a silo; set it to "
            "false"
        )


def digests_stay_with_the_server(plan: Plan) -> None:
    """Refuse to compare rows where silos check the server's sums, and would see the digests of others' rows."""
    config = plan.config
    if config.stats.recur is not None and config.trust.verify is not None:
        raise ConfigError(
            "stats.recur is set but trust.verify is too, with which silos see all that the server gets, digests of "
            "others' rows among it; remove one of them"
        )
    if config.stats.recur is not None and len(plan.clients) < 2:
        raise ConfigError("stats.recur is set but there is one client, whose rows recur nowhere; set it to null")


def the_numbers_fit(plan: Plan) -> None:
    """Refuse so many beginnings and bytes of names that are to be found that the vector of counts fits no machine."""
    assert isinstance(plan.algorithm, Counts)
    cells = plan.algorithm.rule.plan.size
    if cells > MOST_CELLS:
        raise ConfigError(
            f"stats asks for {cells} numbers, {MOST_CELLS} at most; a byte of found names takes {BRANCHES} for each "
            "beginning: set stats.words.width or stats.words.longest lower, those of stats.labels, or stats.by_silo "
            "to false"
        )


SUBJECT = Subject(
    "Counts of what silos have",
    applies=lambda plan: plan.config.paradigm == "stats",
    of_plan=(enough_shares_are_honest, the_server_has_no_rows, digests_stay_with_the_server, the_numbers_fit),
)
