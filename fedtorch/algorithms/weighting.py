"""Aggregation weights p_i (FedAvg; Lorar, Eqns. 2 and 6), as functions of the Reports alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from fedtorch.core.update import Report

log = logging.getLogger(__name__)


def _size(report: Report, cap: float) -> float:
    return report.size


def _declared(report: Report, cap: float) -> float:
    return float(report.examples)  # where numbers are declared no report has another one


def _equal(report: Report, cap: float) -> float:
    return float(report.draws)


def _loss_reduction(report: Report, cap: float) -> float:
    return min(cap, max(0.0, float(report.extra["loss_reduction"])))


def _lorar(report: Report, cap: float) -> float:
    return _size(report, cap) * _loss_reduction(report, cap)


WEIGHTINGS: dict[str, Callable[[Report, float], float]] = {
    "size": _size,
    "equal": _equal,
    "declared": _declared,
    "loss_reduction": _loss_reduction,
    "lorar": _lorar,
}


KNOWN_ALONE = ("size", "equal", "declared")
"""the weightings of which a_i does not depend on what the client has learned, nor on other clients"""


class NothingToWeighError(ValueError):
    """No report has examples and finite numbers, so none of the updates can count."""


def normalised(name: str, reports: Sequence[Report], cap: float | None = None) -> list[float]:
    """p_i = a_i / Σ a_j, with a_i = n_i (size), 1 (equal), ΔL_i (loss_reduction) or n_i ΔL_i (lorar).

    n_i is `Report.size`: examples, or what the task counts in their place.
    size: FedAvg; Lorar, Eqn. 2. lorar: Lorar, Eqn. 6. loss_reduction: Lorar, section 6.3.
    Under size-proportional sampling `equal` counts a client once per draw. cap: the largest ΔL that counts.
    Returns one weight per report, in order, summing to 1, or [] for no reports. Guards, which the paper's code lacks:
    a report with any non-finite number, or without examples, gets weight 0; a negative ΔL counts as 0; if all a_i are
    0 (nothing was learned) the training sizes are used, and a warning is logged.

    Raises:
        NothingToWeighError: no report has examples and finite numbers.
    """
    if not reports:
        return []
    most = math.inf if cap is None else cap
    raw = [WEIGHTINGS[name](report, most) if _counts(report) else 0.0 for report in reports]
    if math.fsum(raw) == 0.0 and name != "size":
        log.warning("every client's %s weight is 0 in this round: using training sizes instead", name)
        raw = [_size(report, most) if _counts(report) else 0.0 for report in reports]
    return shares(raw)


def shares(own: Sequence[float]) -> list[float]:
    """a_i / Σ a_j.

    Raises:
        NothingToWeighError: the sum is 0.
    """
    total = math.fsum(own)
    if total == 0.0:
        raise NothingToWeighError("no client with training examples and finite numbers to weigh")
    return [value / total for value in own]


def alone(name: str, report: Report) -> float | None:
    """a_i of one client, where it is known of the client alone (`KNOWN_ALONE`); 0 where the client cannot count."""
    if name not in KNOWN_ALONE:
        return None
    return WEIGHTINGS[name](report, math.inf) if _counts(report) else 0.0


def _counts(report: Report) -> bool:
    return report.is_ok and report.examples > 0
