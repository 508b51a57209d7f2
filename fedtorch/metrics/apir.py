"""Performance improvement rates over a base model (FewFedWeight, section 4.2): PIR per task, APIR, wins and losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

Results = Mapping[str, Mapping[str, float]]
"""client -> task -> score. Keyed by both: a task that two clients hold is two results."""

DIGITS = 4
"""Scores are compared after rounding to so many decimals, so that tiny differences are ties."""


def pir(base: float, new: float) -> float | None:
    """(new − base) / |base|; the paper has no |·|, without which a rise from a negative Pearson would be a loss.

    0 if both scores round to 0; None (undefined) if only the base does.
    """
    if round(base, DIGITS) == 0:
        return 0.0 if round(new, DIGITS) == 0 else None
    return (new - base) / abs(base)


@dataclass(frozen=True)
class Comparison:
    """A model against a base. A pair is a client and one of its tasks."""

    rates: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """client -> task -> PIR, None where it is undefined"""
    client_apir: Mapping[str, float | None] = field(default_factory=dict)
    """mean of a client's defined PIRs, None if it has none"""
    apir: float = math.nan
    """mean of `client_apir` over the clients that have one"""
    pooled: float = math.nan
    """mean over all defined PIRs together"""
    win: int = 0
    """pairs that became better, undefined rates included"""
    lose: int = 0
    """pairs that became worse, undefined rates included"""
    tie: int = 0
    """pairs with equal scores"""
    undefined: int = 0
    """pairs without a rate"""

    @property
    def pairs(self) -> int:
        """(client, task) pairs compared."""
        return self.win + self.lose + self.tie


def compare(base: Results, new: Results) -> Comparison:
    """Compares two sets of results over the same clients and tasks.

    Raises:
        ValueError: a client or task is in only one of them.
    """
    ours, theirs = ({(c, t) for c, tasks in r.items() for t in tasks} for r in (base, new))
    if ours != theirs:
        client, task = sorted(ours ^ theirs)[0]
        raise ValueError(f"client {client}, task {task} has a score in only one of the two runs")
    rates = {client: {task: pir(base[client][task], new[client][task]) for task in base[client]} for client in base}
    defined = {client: [rate for rate in tasks.values() if rate is not None] for client, tasks in rates.items()}
    means = {client: fmean(values) if values else None for client, values in defined.items()}
    everything = [value for values in defined.values() for value in values]
    gains = [round(new[c][t], DIGITS) - round(base[c][t], DIGITS) for c, tasks in base.items() for t in tasks]
    return Comparison(
        rates,
        means,
        fmean(found) if (found := [mean for mean in means.values() if mean is not None]) else math.nan,
        fmean(everything) if everything else math.nan,
        win=sum(gain > 0 for gain in gains),
        lose=sum(gain < 0 for gain in gains),
        tie=sum(gain == 0 for gain in gains),
        undefined=sum(rate is None for tasks in rates.values() for rate in tasks.values()),
    )
