"""Weights of updates that were made from older versions of the server's weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.weighting import NothingToWeighError
from fedtorch.config.asynchrony import AsyncConfig
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.rounds.asynchrony.plan import Job
from fedtorch.rounds.weighing import Weighing


class StalenessWeighing(Weighing):
    """a_i s(τ_i) / N: FedBuff (Nguyen et al. 2022, Algorithm 1), FedAsync (Xie et al. 2019, Algorithm 1).

    N is Σ a_i with `normalise: count`, and Σ a_i s(τ_i) with `weights`, over the updates that count.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        settings: AsyncConfig,
        job_of: Callable[[str], Job],
        version: Callable[[int], Tensor],
    ) -> None:
        """job_of: the job of the open buffer that a report's name stands for. version: the weights of a version."""
        super().__init__(algorithm)
        self._settings, self._job_of, self._version = settings, job_of, version

    def factor(self, name: str) -> float:
        """s(τ) of the job that a report's name stands for."""
        return self._settings.staleness.factor(self._job_of(name).staleness)

    def own(self, reports: Sequence[Report]) -> list[float]:
        """a_i s(τ_i) of each."""
        return [a * self.factor(report.client) for a, report in zip(super().own(reports), reports, strict=True)]

    def divisor(self, reports: Sequence[Report]) -> float:
        """N."""
        return math.fsum(super().own(reports) if self._settings.normalise == "count" else self.own(reports))

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """One weight per accepted report; they sum to 1 where none is stale, or with `normalise: weights`."""
        divisor = self.divisor(reports)
        if reports and divisor == 0.0:
            raise NothingToWeighError("no client with training examples and finite numbers to weigh")
        return [own / divisor for own in self.own(reports)]

    def along(
        self, combined: Tensor, server: ServerState, reports: Sequence[Report], shares: Sequence[float]
    ) -> Tensor:
        """With `towards: model` along w_u − w_i = Δ_i + w_u − w_v for the only update (FedAsync, Algorithm 1)."""
        if self._settings.towards == "update":
            return combined
        for report, share in zip(reports, shares, strict=True):
            if (job := self._job_of(report.client)).staleness:
                combined = combined.add_(server.weights - self._version(job.version), alpha=share)
        return combined
