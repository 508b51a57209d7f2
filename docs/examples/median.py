"""A user's algorithm that is not a weighted sum: the coordinate-wise median of the clients' updates.

It looks at the updates one at a time, in slices, so the server never holds all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtorch import Updates
from fedtorch.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Median(FedAvg):
    """Server: w ← w − median_i(Δ_i), whatever the weights; robust against a minority of broken clients."""

    slices: int = 1
    """how many parts of the vector to go through; more need less memory and send every update as often"""

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> Tensor:
        """The median of each number over the clients (the lower one of the two middle ones, if they are even)."""
        parts = []
        for part in range(self.slices):
            rows = torch.stack([grad.tensor_split(self.slices)[part].clone() for grad in updates])
            parts.append(rows.median(dim=0).values)
        return torch.cat(parts)
