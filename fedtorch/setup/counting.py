"""A run of `paradigm: stats`, from a config: its task, its rule, and what is promised about its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedtorch.algorithms.counts import Counts, CountsByRound
from fedtorch.config.schema import Config
from fedtorch.core.client import folder_name
from fedtorch.core.silo_work import by_person
from fedtorch.privacy.accounting import least_noise
from fedtorch.privacy.counts import EXPONENT, Cells, CountsLevel, CountTerms
from fedtorch.privacy.public_sum import Masking
from fedtorch.privacy.record.silo import Blocks, Silo
from fedtorch.privacy.secure_sum.terms import threshold_of
from fedtorch.rounds.topology import Topology
from fedtorch.stats.prefixes import Noise
from fedtorch.stats.questions import CountPlan
from fedtorch.stats.rule import CountRule
from fedtorch.stats.settings import PersonUnit, StatsPrivacy
from fedtorch.tasks.counted import Counted, plan_of


def counting(config: Config, topology: Topology) -> tuple[Counted, Counts]:
    """The task whose rows are counted, and the rule by which they are.

    Raises:
        ConfigError: no noise is enough for `stats.privacy.epsilon`.
    """
    task, stats = Counted(config.task, config.stats.recur, config.stats.privacy is None), config.stats
    hides = config.privacy.secure_sum is not None
    plan = plan_of(config.task, tuple(task.manifest()), stats, hides=hides)
    noise = Noise(0.0) if stats.privacy is None else Noise(noise_of(stats.privacy, plan), _honest(config, topology))
    made = CountsByRound if config.trust.members is None else Counts  # of places alone no party or gate has an account
    return task, made(CountRule(plan, noise, stats.min_count, stats.words, stats.recur))


def noise_of(settings: StatsPrivacy, plan: CountPlan) -> float:
    """z: as given, or the least for `epsilon`.

    Raises:
        ConfigError: none up to 1000 is enough.
    """
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    assert settings.epsilon is not None
    return least_noise(settings.epsilon, 1.0, plan.releases, settings.delta)


def _honest(config: Config, topology: Topology) -> int | None:
    """t − a: so many shares of the noise are surely in a sum; None: every silo adds all of it."""
    secure = config.privacy.secure_sum
    if secure is None:
        return None
    return max(1, threshold_of(secure.threshold, len(topology.workers)) - config.privacy.colluders)


def make_counts_level(config: Config, rule: CountRule, task: Counted, masking: Masking | None) -> CountsLevel:
    """Make the mechanism; a silo's files are opened, or made, where its rows are. masking: of a secure sum."""
    plan, settings = rule.plan, config.stats.privacy

    def open_silo(client: str) -> Silo:
        return Silo.open(ledgers_folder(config, task) / folder_name(client), str(config.folder.resolve()))

    def units(client: str, rows: Sequence[Any]) -> Sequence[Sequence[int]]:
        return units_of(settings, task, client, len(rows))

    return CountsLevel(terms_of(config, rule), plan.silos, open_silo, units, partial(cells_of, plan), masking)


def cells_of(plan: CountPlan, client: str, round: int) -> Cells:
    """Tables of a client that a round fills."""
    at = plan.silos.index(client)
    return [(place.block(at), place.question.most) for place in plan.in_round(round)]


def noise_on(config: Config, rule: CountRule, task: Counted, client: str) -> tuple[str, str, str, int, Blocks]:
    """Noise on a client's numbers, as `trust.policy.asked` has it: that it takes part in a round is public."""
    plan, terms = rule.plan, terms_of(config, rule)
    at, folder = plan.silos.index(client), ledgers_folder(config, task).absolute() / folder_name(client)
    marks = [plan.present(round).start + at for round in range(plan.rounds)]
    blocks = tuple(
        ((mark, mark + 1, 0.0), *terms.blocks(cells_of(plan, client, round))) for round, mark in enumerate(marks)
    )
    return client, str(folder), terms.noise, EXPONENT, blocks


def terms_of(config: Config, rule: CountRule) -> CountTerms:
    """Public numbers of the promise, if there is one."""
    settings, plan = config.stats.privacy, rule.plan
    releases = tuple(len(plan.in_round(round)) for round in range(plan.rounds))
    if settings is None:
        return CountTerms(0.0, None, 1.0, None, "row", "normal", releases)
    noise = rule.noise
    return CountTerms(
        noise.multiplier, noise.honest, settings.delta, settings.max_epsilon, unit_named(settings), settings.noise,
        releases,
    )  # fmt: skip


def unit_named(settings: StatsPrivacy | None) -> str:
    """Say what is counted, for people."""
    unit = "row" if settings is None else settings.unit
    return f"person (column {unit.column})" if isinstance(unit, PersonUnit) else unit


def units_of(settings: StatsPrivacy | None, task: Counted, client: str, rows: int) -> list[Sequence[int]]:
    """Places of each unit's rows among a client's."""
    unit = "row" if settings is None else settings.unit
    if unit == "client":
        return [range(rows)] if rows else []
    if unit == "row":
        return [(at,) for at in range(rows)]
    return [*by_person(task.persons(client))]


def ledgers_folder(config: Config, task: Counted) -> Path:
    """Where silos have their keys and ledgers, those of trainings among them."""
    settings = config.stats.privacy
    if settings is not None and settings.ledger is not None:
        return Path(settings.ledger)
    return task.rows_of.ledgers
