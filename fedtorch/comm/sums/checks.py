"""Whether what was received can be what the clients reported, and arrived as it was sent.

Two kinds of check. *Against a lie*: an update, a rank's sum and the whole sum have norms that follow from the reported
ones, or are bounded by them. *Against damage*: whoever sends a payload tells a digest of each window, whoever receives
it compares. Where ranks' sums are added on the way nobody receives what was sent; there every rank tells a projection
of its windows, and the projections must add up to that of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.comm.transport.digests import DAMAGED
from fedtorch.core.norms import norm_and_max
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report

TOLERANCE = 1e-6  # of a norm: both sides compute it in float64, some 1e-15 apart; a lie below this changes nothing
_ROW = 1 << 12  # numbers of a window that are projected together


def claim_problem(report: Report, update: Tensor) -> str:
    """How `update` differs from what its client reported of it; empty if it does not. Messages are not looked into."""
    if not update.dtype.is_floating_point:
        return ""
    norm, max_abs = norm_and_max(update)
    return norm_problem(report, norm, max_abs)


def norm_problem(report: Report, norm: float, max_abs: float) -> str:
    """How the norm and the largest element of a client's update differ from its report's; empty if they do not."""
    for name, found, said in (("norm", norm, report.norm), ("largest element", max_abs, report.max_abs)):
        if not math.isfinite(found):
            return f"its update is not finite, but it reported the {name} {said:.6g}"
        if not abs(found - said) <= TOLERANCE * max(found, said):
            return f"its update has the {name} {found:.6g}, but it reported {said:.6g}"
    return ""


def as_integers(numbers: Sequence[float]) -> list[int]:
    """The bits of each, to be sent as integers."""
    return torch.tensor(numbers, dtype=torch.float64).view(torch.int64).tolist()


def as_numbers(integers: Sequence[int]) -> list[float]:
    """Undo `as_integers`."""
    return torch.tensor(integers, dtype=torch.int64).view(torch.float64).tolist()


def projection(window: Tensor) -> float:
    """Σ h_i x_i over a float64 vector, with fixed h_i at random in [-1, 1]: that of a sum is the sum of those.

    Computed where the window lies; its last bits differ between devices.
    """
    rows = window.numel() // _ROW
    factors, weights = _projector(window.device)
    whole, rest = window[: rows * _ROW].view(rows, _ROW), window[rows * _ROW :]
    found = torch.dot(rest, factors[: len(rest)])
    return float(torch.dot(torch.mv(whole, factors), weights[:rows]) + found if rows else found)


class SumCheck:
    """Bounds on a weighted sum by the norms that the clients reported.

    Norms here are of the whole numbers that are added, as they are added (`reproducible`). What does not fit is kept
    as text, and blamed on a client where one can be named.
    """

    blamed: dict[str, str]
    """Client -> why its part of the sum cannot be what it reported."""
    problems: list[str]
    """Whatever does not fit, in words."""

    def __init__(
        self, terms: Sequence[tuple[Report, float]], scale: SumScale, size: int, max_norm: float | None = None
    ) -> None:
        """terms: report and weight of each client in the sum. size: elements of an update.

        max_norm: what the sum's norm may be at most, where that is known without the reports; None: Σ |p_i| norm_i.
        """
        self._scale = scale
        self._factors = {report.client: scale.scaled(abs(weight)) for report, weight in terms}
        self._claimed = {report.client: self._factors[report.client] * report.norm for report, _ in terms}
        self._rounding = 0.5 * math.sqrt(size)  # of one client's numbers to whole ones
        self._max_norm = None if max_norm is None else scale.scaled(max_norm)
        self.blamed, self.problems = {}, []

    def bound(self, clients: Sequence[str] | None = None) -> float:
        """The largest norm of these clients' part of the sum; None: of all of it."""
        names = list(self._claimed) if clients is None else clients
        claimed = math.fsum(self._claimed[name] for name in names)
        if clients is None and self._max_norm is not None:
            claimed = self._max_norm
        return claimed * (1 + TOLERANCE) + self._rounding * len(names)

    def see_client(self, client: str, squares: float) -> None:
        """A client's own numbers were added. squares: the sum of theirs."""
        found, said = math.sqrt(squares), self._claimed[client]
        if not abs(found - said) <= TOLERANCE * said + self._rounding:
            norms = (norm / self._factors[client] for norm in (found, said))
            self.blame(client, "its update has the norm {:.6g}, but it reported {:.6g}".format(*norms))

    def see_part(self, rank: int, clients: Sequence[str], squares: float) -> None:
        """A rank's sum of some clients was added."""
        if not math.sqrt(squares) <= self.bound(clients):
            self.problems.append(f"the sum of rank {rank} is larger than its clients reported")

    def see_damage(self, rank: int, clients: Sequence[str]) -> None:
        """Note that what a rank sent of some clients is not what came; a client alone is blamed."""
        if len(clients) == 1:
            self.blame(clients[0], f"its update {DAMAGED}")
        else:
            self.problems.append(f"the sum of rank {rank} {DAMAGED}")

    def see_sum(self, squares: float, out: Tensor) -> None:
        """`out` is the sum of all, and `squares` that of its whole numbers."""
        if not math.sqrt(squares) <= self.bound():
            self.problems.append("the sum of the updates is not finite, or larger than the clients reported")
        elif (
            math.sqrt(squares) / self._scale.scaled(self._scale.divisor) > torch.finfo(out.dtype).max
            and not out.isfinite().all()
        ):
            self.problems.append(f"the sum of the updates is beyond {out.dtype}")

    def see_projections(self, ranks: Sequence[float], total: Sequence[float], length: int) -> None:
        """Compare, window by window, the sum of the ranks' projections with that of what came."""
        # adding n products in any order is off by at most n 2^-53 Σ |h x| <= n^1.5 2^-53 |x|, on both sides
        slack = 2.0**-50 * length**1.5 * self.bound()
        if any(not abs(sent - came) <= slack for sent, came in zip(ranks, total, strict=True)):
            self.problems.append(f"a window of the ranks' sums {DAMAGED}")

    def blame(self, client: str, reason: str) -> None:
        """A client's part is not what it should be."""
        self.blamed.setdefault(client, reason)
        self.problems.append(f"the update of client {client}: {reason}")


class LimitCheck(SumCheck):
    """Bounds on a sum where reports say nothing of an update, and none may be longer than a public limit."""

    def __init__(self, reports: Sequence[Report], scale: SumScale, size: int, limit: float) -> None:
        """limit: the largest norm of each update, which is a whole vector at the scale already."""
        super().__init__([(replace(report, norm=limit), 1.0) for report in reports], scale, size)
        self._rounding = 0.0

    def see_client(self, client: str, squares: float) -> None:
        """A client's own numbers were added. squares: the sum of theirs."""
        if not math.sqrt(squares) <= self.bound([client]):
            self.blame(client, "its update is longer than the clip")


@cache
def _projector(device: torch.device) -> tuple[Tensor, Tensor]:
    """(h within a row, one factor per row of the longest window), on the device."""
    generator = generator_for(0, "projection of windows")
    drawn = torch.rand(2 * _ROW, generator=generator, dtype=torch.float64) * 2 - 1
    drawn = drawn.to(device)
    return drawn[:_ROW], drawn[_ROW:]
