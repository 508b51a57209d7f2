"""How long a client's training takes by the virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

from fedtorch.config.asynchrony import DurationConfig
from fedtorch.core.seeds import seed_for

US_PER_S = 1_000_000
Duration = Callable[[str, int], int]
"""(client, number of its training from 0) -> microseconds, at least 1."""


def durations(settings: DurationConfig, run_seed: int, rows: Mapping[str, float]) -> Duration:
    """Durations by the config, a pure function of client and visit.

    rows: client -> rows that one of its trainings passes over, for `kind: rows`.
    """
    sd = 1.0 if settings.sd is None else settings.sd
    least = 0.01 if settings.min is None else settings.min
    median = 1.0 if settings.median is None else settings.median
    per_row = 0.001 if settings.per_row is None else settings.per_row

    def normal(client: str, visit: int) -> float:
        return _normal(seed_for(run_seed, "duration", client, visit if settings.per == "visit" else 0))

    def seconds(client: str, visit: int) -> float:
        if settings.kind == "table":
            return settings.seconds[client]
        if settings.kind == "rows":
            return per_row * rows[client]
        drawn = sd * normal(client, visit)
        return least + (abs(drawn) if settings.kind == "half_normal" else median * math.exp(drawn))

    return lambda client, visit: max(1, round(seconds(client, visit) * US_PER_S))


def _normal(seed: int) -> float:
    """A standard normal number of a seed of 63 bits, by the inverse of its distribution at one of 2^52 places."""
    return NormalDist().inv_cdf(((seed >> 11) + 0.5) * 2.0**-52)
