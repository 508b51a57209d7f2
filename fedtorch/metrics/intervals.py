"""Intervals of 95 % for a share of rows, and for a mean over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

Z = NormalDist().inv_cdf(0.975)
"""Two sides, 95 %."""
_T = (12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469118, 2.3646243, 2.3060041, 2.2621572, 2.2281389)
"""Student's t for 0.975 with 1 to 10 degrees of freedom."""


def wilson(hits: float, count: int) -> tuple[float, float]:
    """(low, high) of a share: `hits` of `count` rows, taken as independent draws.

    Wilson 1927: (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n). It stays within [0, 1], and has a width at 0 and
    at 1 too.

    Raises:
        ValueError: no rows, or more hits than rows.
    """
    if count < 1 or not 0 <= hits <= count:
        raise ValueError(f"{hits} of {count} is no share of rows")
    share, square = hits / count, Z * Z / count
    middle = share + square / 2
    half = Z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """(low, high) of a mean over seeds, mean ± t · s/√n; None of fewer than two, and of equal ones.

    Seeds that all came to the same figure have no spread; an interval without a width would say that they never differ.
    """
    if len(values) < 2 or min(values) == max(values):
        return None
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def student(degrees: int) -> float:
    """Student's t for 0.975: from a table up to 10 degrees of freedom, else within 1e-5.

    Abramowitz and Stegun 26.7.5, the expansion around the normal quantile.
    """
    if degrees <= len(_T):
        return _T[degrees - 1]
    z, n = Z, degrees
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n ** (place + 1) for place, term in enumerate(terms))
