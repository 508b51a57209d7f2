"""Whether two runs differ by more than chance, over what they scored on the same examples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TTest:
    """Result of a paired t-test."""

    t: float
    """mean difference over its standard error; 0 or ±infinity where all differences are equal"""
    p: float
    """two-tailed"""
    mean_difference: float
    """ours minus theirs"""
    count: int
    """pairs of values"""


def paired_t_test(ours: Sequence[float], theirs: Sequence[float]) -> TTest:
    """Two-tailed paired t-test over per-example values (FedMatch, Tables 2 and 3: p < 0.05 against BERT).

    Equal values throughout give t = 0 and p = 1. The same non-zero difference everywhere gives t = ±infinity and p = 0:
    there is no spread to measure it against.

    Args:
        ours, theirs: the two runs' values of the same examples, in the same order.

    Raises:
        ValueError: different numbers of values, fewer than two, or a value that is not finite.
    """
    from scipy import stats  # an extra, see `core.extras`

    if len(ours) != len(theirs):
        raise ValueError(f"got {len(ours)} and {len(theirs)} values; expected the same examples in both runs")
    if len(ours) < 2:
        raise ValueError(f"a paired t-test over {len(ours)} examples says nothing; expected at least 2")
    if not all(map(math.isfinite, (*ours, *theirs))):
        raise ValueError("a value is NaN or infinite; expected finite ones")
    differences = [float(a) - float(b) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    if min(differences) == max(differences):  # scipy gives NaN, or a warning and a number that rounding made
        certain = differences[0] != 0
        return TTest(math.copysign(math.inf, mean) if certain else 0.0, 0.0 if certain else 1.0, mean, len(ours))
    result = stats.ttest_rel(ours, theirs)
    return TTest(float(result.statistic), float(result.pvalue), mean, len(ours))
