"""Cost of runs that are about to begin: ε of all of them together, beside what was released of their data."""

from __future__ import annotations

from collections.abc import Iterable

from fedtorch.config.load import companions
from fedtorch.config.schema import Config
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.data_ledger import DataLedger, epsilon_of
from fedtorch.setup.data_ledger import data_ledger
from fedtorch.setup.mechanism import noise_of, releases_of, terms_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import silo_terms
from fedtorch.setup.rules import check_promise

Part = tuple[float, float, int]
"""q, z, and how many releases."""


def cost_of(configs: Iterable[Config]) -> list[str]:
    """A line for each set of data: what its runs, with their companions, come to together; none without privacy.

    Of a run that has begun what is left of it.

    Raises:
        FedtorchError: a run cannot keep its promise, or a ledger cannot be read.
    """
    found: dict[str, tuple[DataLedger | None, list[Part], list[float]]] = {}
    for config in [each for first in configs for each in (first, *companions(first).values())]:
        if config.privacy.kind != "client" or config.privacy.simulate:
            continue
        plan = Plan.of(config, 1)
        check_promise(plan)
        ledger = data_ledger(plan)
        name = f"the task {config.task_name}" if ledger is None else str(ledger.path)
        _, parts, deltas = found.setdefault(name, (ledger, [], []))
        parts.append(_part(plan))
        assert config.privacy.delta is not None
        deltas.append(config.privacy.delta)
    return [_line(name, *rest) for name, rest in found.items()]


def epsilon_by_silo(config: Config) -> dict[str, float]:
    """ε of a run that is about to begin, if all its rounds are done; empty where nothing is promised.

    With `privacy.kind: record` silo -> ε at its own δ, if it takes part in every round; with `client` one number under
    `all`. No ledger is opened.

    Raises:
        FedtorchError: the run cannot keep its promise, or its data cannot be read.
    """
    plan, privacy = Plan.of(config, 1), config.privacy
    check_promise(plan)
    if privacy.kind == "none" or privacy.simulate:
        return {}
    if privacy.kind == "record":
        return {name: terms.epsilon(terms.rounds) for name, terms in silo_terms(plan).items()}
    assert privacy.delta is not None
    terms = terms_of(plan, noise_of(plan))
    account = Accountant(terms.rate, terms.noise_multiplier, privacy.delta)
    return {"all": account.epsilon(releases_of(account, config))}


def _part(plan: Plan) -> Part:
    terms, config = terms_of(plan, noise_of(plan)), plan.config
    assert config.privacy.delta is not None
    account = Accountant(terms.rate, terms.noise_multiplier, config.privacy.delta)
    return terms.rate, terms.noise_multiplier, releases_of(account, config, left=True)


def _line(name: str, ledger: DataLedger | None, parts: list[Part], deltas: list[float]) -> str:
    delta, known = min(deltas), ledger.runs() if ledger is not None else {}
    runs, releases = f"{len(parts)} run{'s' * (len(parts) != 1)}", sum(count for *_, count in parts)
    said = f"privacy: {runs} on the data of {name} will cost epsilon {epsilon_of([], parts, delta):.4f} together"
    said += f", {releases} releases at delta {delta:g}"
    if before := sum(len(run.releases) for run in known.values()):
        total = epsilon_of(known.values(), parts, delta)
        said += f"; with the {before} releases of {len(known)} runs before, epsilon {total:.4f}"
    return said
