"""Says before a run what its privacy and its secure sum promise: a part of `--dry-run`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedtorch.planning.counts import describe_counts
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.client_level import ClientLevel
from fedtorch.privacy.data_ledger import epsilon_of
from fedtorch.privacy.record.level import OUTSIDE
from fedtorch.privacy.record.terms import SiloTerms, epsilon_of_counts, together
from fedtorch.privacy.secure_sum.terms import threshold_of
from fedtorch.setup.data_ledger import data_ledger
from fedtorch.setup.mechanism import noise_of, releases_of, terms_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import silo_terms, threshold
from fedtorch.setup.rules.sums import is_public

_POINTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
"""Releases of which the dry run shows ε, and the last one."""


def describe_private(plan: Plan) -> str:
    """ε by the number of releases, for `--dry-run`; empty where nothing is promised."""
    config = plan.config.privacy
    if plan.config.counts_privately:
        return describe_counts(plan)
    if config.kind == "none":
        return ""
    if config.kind == "record":
        return _describe_records(plan)
    terms = terms_of(plan, noise_of(plan))
    said = (
        f"privacy: with one client or without it (zero-out), Poisson sampling with rate {terms.rate:g} of "
        f"{terms.clients} clients, noise multiplier {terms.noise_multiplier:g}, delta {config.delta:g}"
    )
    if config.simulate:
        return f"{said}\n  simulated: its noise can be computed by everybody, so nothing is promised"
    assert config.delta is not None
    account, rounds = Accountant(terms.rate, terms.noise_multiplier, config.delta), max(1, plan.config.rounds)
    counts = sorted({count for count in _POINTS if count < rounds} | {rounds})
    lines = [said, "  round    epsilon", *(f"  {count:>5} {account.epsilon(count):>10.4f}" for count in counts)]
    if (fits := releases_of(account, plan.config)) < rounds:
        lines.append(
            f"  privacy.max_epsilon {config.max_epsilon:g} is enough for {fits} of {rounds} rounds; then code 10"
        )
    if (ledger := data_ledger(plan)) is not None and (known := ledger.runs()):
        left = releases_of(account, plan.config, left=True)
        total = epsilon_of(known.values(), [(terms.rate, terms.noise_multiplier, left)], config.delta)
        lines.append(
            f"  {ledger.path} has {sum(len(run.releases) for run in known.values())} releases of {len(known)} runs on "
            f"these data; with all rounds of this one they come to epsilon {total:.4f}"
        )
    lines += [f"  outside the guarantee: {what}" for what in ClientLevel(terms, None).outside]
    return "\n".join(lines)


def _describe_records(plan: Plan) -> str:
    """A row for each silo: its public numbers, ε by rounds, and when it rests."""
    config, terms = plan.config.privacy, silo_terms(plan)
    unit = "row" if config.unit == "row" else f"person (column {config.unit.column})"
    whom, how = "the server and the other silos", "noise of each silo's own in every step"
    if config.noise_at == "shared":
        whom = "the server, not against a silo that takes part"  # which knows its own share
        if config.colluders:
            whom = f"the server together with {config.colluders} of the silos"
        how = "shares of the noise on a sum that nobody sees in parts"
    said = f"privacy: of each {unit}, against {whom}, by {how}"
    if config.simulate:
        return f"{said}\n  simulated: its noise can be computed by everybody, so nothing is promised"
    rounds = max(1, plan.config.rounds)
    lines = [*_silos_table(terms, rounds), *_of_scores(terms, rounds)]
    for name, each in terms.items():
        if each.max_epsilon is not None and (fits := each.rounds_within(each.max_epsilon)) < rounds:
            lines.append(f"{name} rests after {fits} of {rounds} rounds: privacy.max_epsilon {each.max_epsilon:g}")
    if config.noise_at == "shared":
        t, honest = threshold(plan), next(iter(terms.values())).honest
        lines.append(
            f"a sum is opened with {t} parts or more, {honest} of them of silos that do not tell the server theirs "
            f"(privacy.colluders {config.colluders}): a round's gradient has {math.sqrt(honest):.4g} times less noise "
            "than with local noise of the same epsilon"
        )
    if len(terms) > 1:
        every, least = together(list(terms.values()), rounds), min(each.delta for each in terms.values())
        lines.append(f"somebody with rows in all silos: epsilon {every:.4f} at delta {least:g}")
    lines += [f"outside the guarantee: {what}" for what in OUTSIDE]
    return "\n  ".join([said, *lines])


def _of_scores(terms: Mapping[str, SiloTerms], rounds: int) -> list[str]:
    """Lines on noised scores, whose ε is in the table."""
    lines = []
    for name, each in terms.items():
        if (held_out := each.held_out) is None:
            continue
        counts = held_out.counts_in(rounds, rounds)
        said = ", ".join(f"{count} of {held_out.units[split]} units of {split}" for split, count in counts.items())
        alone = epsilon_of_counts(held_out.noise_multiplier, counts, each.delta, apart=held_out.apart)
        lines.append(
            f"{name}: {said or 'no'} noised scores ({', '.join(held_out.metrics)}), noise "
            f"{held_out.noise_multiplier:g}: epsilon {alone:.4f} by themselves"
        )
    if lines:
        apart = all(each.held_out is None or each.held_out.apart for each in terms.values())
        lines.append(
            "a row is trained on or scored, so the larger epsilon is in the table; a silo's ledger adds both up"
            if apart
            else "a person may be trained on and scored, so the table has both together"
        )
    return lines


def _silos_table(terms: Mapping[str, SiloTerms], rounds: int) -> list[str]:
    """Lines of a table, of which each column is as wide as it has to be."""
    shown = sorted({1, max(1, rounds // 2), rounds})
    rows = [["silo", "units", "rate", "steps", "noise", "delta", *(f"epsilon, round {number}" for number in shown)]]
    for name, each in terms.items():
        numbers = [str(each.units), f"{each.rate:.4g}", str(each.steps_in(rounds)), f"{each.noise_multiplier:.4f}"]
        rows.append([name, *numbers, f"{each.delta:g}", *(f"{each.epsilon(number):.4f}" for number in shown)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _against(plan: Plan, needed: int) -> str:
    """Against whom a secure sum hides parts. needed: answers that open it."""
    if plan.config.trust.members is None:
        return (
            f"  against a server that follows the protocol and fewer than {needed} workers with it; not against one "
            "that does not, nor differences between rounds"
        )
    colluders = plan.config.privacy.colluders
    return (
        f"  against any server with {colluders} of the silos (privacy.colluders): every sum that is opened has "
        f"the parts of {needed - colluders} others or more in it; not against differences between rounds"
    )


def describe_public_sum(plan: Plan) -> str:
    """Say what the sum becomes, for `--dry-run`; empty where sums are as always."""
    config = plan.config.privacy
    if not is_public(plan) or config.kind == "record":  # of which `describe_private` says more
        return ""
    scale = f"sums of updates clipped to {config.first_clip:g}, at a scale that follows from it alone, equal weights"
    if config.secure_sum is None:
        return f"public scale: {scale}; the server sees every update"
    count = len(plan.topology.workers)
    needed = threshold_of(config.secure_sum.threshold, count)
    lines = [
        f"secure sum: of {count} workers, which are the parties; {needed} must be there to the end of a round that all "
        f"take part in; {scale}",
        "  the server sees the sum of a round, who took part, and of each its rows, steps and seconds",
        "  kept by the worker: updates, their norms and largest elements, losses and curves; no record has them",
        "  still sent to the server: scores of clients' evaluation (eval.every: 0 keeps them), states in checkpoints "
        "where clients keep any and disks are shared",
        "  refused with it: robust rules, weights by size or loss (Lorar), SCAFFOLD and other rules that look at one "
        "update, compressed messages, limits on norms, a server that trains clients, single updates on their way",
        _against(plan, needed),
    ]
    return "\n".join(lines)
