"""A run as one silo sees it: ε of all its rounds beside what was ever released of its rows, and what its sums are."""

from __future__ import annotations

from pathlib import Path

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.counts import Counts
from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.config.schema import Config
from fedtorch.core.client import folder_name
from fedtorch.core.overrides import overrides
from fedtorch.core.weights import Layout
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.record.silo import LEDGER, parts_of, read_ledger
from fedtorch.privacy.record.terms import SiloTerms, epsilon_of
from fedtorch.setup.counting import ledgers_folder
from fedtorch.setup.counting import terms_of as counted_terms
from fedtorch.setup.mechanism import noise_of, releases_of, terms_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import silo_terms, silos_folder, threshold
from fedtorch.stats.rule import CountRule
from fedtorch.tasks.counted import Counted


def promise_to(plan: Plan, client: str, *, is_new: bool) -> tuple[str, float | None, float | None]:
    """(kind, ε, δ) for a client if all rounds are done; ("none", None, None) where nothing is promised.

    With `kind: record` ε is that of all releases of the silo's rows, of whatever run, by its own ledger; a run that
    goes on is counted once. With `client`, whose ledger is the server's, it is that of this run. is_new: is what the
    ledger has of a run in the same folder that of another one, which this one takes the place of?

    Raises:
        CheckpointError: the silo's ledger is damaged.
    """
    config = plan.config.privacy
    if isinstance(plan.algorithm, Counts) and isinstance(plan.task, Counted) and plan.config.counts_privately:
        return _of_counts(plan.config, plan.algorithm.rule, plan.task, client, is_new=is_new)
    if config.kind == "none" or config.simulate:
        return "none", None, None
    if config.kind == "record":
        terms = silo_terms(plan)[client]
        ledger = silos_folder(plan) / folder_name(client) / LEDGER
        return "record", _by_ledger(terms, ledger, "" if is_new else str(plan.config.folder.resolve())), terms.delta
    assert config.delta is not None
    account = Accountant(terms_of(plan, z := noise_of(plan)).rate, z, config.delta)
    return "client", account.epsilon(releases_of(account, plan.config)), config.delta


def _of_counts(
    config: Config, rule: CountRule, task: Counted, client: str, *, is_new: bool
) -> tuple[str, float, float]:
    """Promise of a run that counts rows with noise, which is one about rows or persons too."""
    terms, ledger = counted_terms(config, rule), ledgers_folder(config, task) / folder_name(client) / LEDGER
    known = read_ledger(ledger) if ledger.exists() else []
    others = [one for one in known if is_new or one.run != str(config.folder.resolve())]
    return "record", epsilon_of([*parts_of(others), *terms.parts(rule.plan.releases)], terms.delta), terms.delta


def least_parties(plan: Plan) -> int | None:
    """With how many silos' parts a sum is opened at least; None: there is no secure sum."""
    return None if plan.config.privacy.secure_sum is None else threshold(plan)


def sends_messages(plan: Plan, shared: Layout) -> bool:
    """Do clients send something else than whole vectors over the shared parameters?"""
    algorithm = plan.algorithm
    has_messages = isinstance(algorithm, MessageAlgorithm) and bool(algorithm.message_bytes(shared))
    return (
        has_messages
        or overrides(type(algorithm), "places", Algorithm)
        or plan.config.exchange.bits != type(plan.config.exchange).bits
    )


def _by_ledger(terms: SiloTerms, ledger: Path, run: str) -> float:
    """ε of a run and of all other runs in a ledger, or less where the silo rests before. run: as it is called there."""
    known = read_ledger(ledger) if ledger.exists() else []
    others = [one for one in known if one.run != run]
    total = epsilon_of([*parts_of(others), *terms.all_parts(terms.rounds)], terms.delta)
    if terms.max_epsilon is None:
        return total
    released = epsilon_of(list(parts_of(known)), terms.delta)  # from there on it rests
    return min(total, max(terms.max_epsilon, released))
