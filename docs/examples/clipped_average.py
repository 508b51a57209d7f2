"""A user's algorithm in one file: FedAvg with every update scaled down to a largest norm.

Named in YAML as `algorithm: {name: "clipped_average:ClippedAverage", max_norm: 0.05}`, with this file's folder as the
working directory or on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtorch import Report
from fedtorch.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class ClippedAverage(FedAvg):
    """Σ p_i · min(1, max_norm / ‖Δ_i‖) · Δ_i: a client that moved far counts as if it had moved `max_norm`."""

    max_norm: float = 1.0
    """largest norm of one client's update"""

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """FedAvg's weights times the clipping factors; they may sum to less than 1."""
        weights = super().weigh(reports)
        return [w * min(1.0, self.max_norm / r.norm) if r.norm else w for w, r in zip(weights, reports, strict=True)]
