"""Weights of updates in a round's sum, by the algorithm alone; `asynchrony.weighing` also asks how old they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report


class Weighing:
    """The algorithm's own weights."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def own(self, reports: Sequence[Report]) -> list[float]:
        """Number of each client of which its weight is made, where the algorithm has such; else 0."""
        return [float(self.algorithm.own_weight(report) or 0.0) for report in reports]

    def divisor(self, reports: Sequence[Report]) -> float:
        """Number by which `own` is divided."""
        return math.fsum(self.own(reports))

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """One weight per accepted report, in the same order.

        Raises:
            NothingToWeighError: there are reports, and all of them weigh 0.
        """
        return self.algorithm.weigh(reports)

    def along(
        self, combined: Tensor, server: ServerState, reports: Sequence[Report], shares: Sequence[float]
    ) -> Tensor:
        """Return what the server steps along, on the server; it may be written into `combined`.

        combined: Σ shares_i Δ_i, flat. server: before the step, not to be changed.
        """
        return combined
