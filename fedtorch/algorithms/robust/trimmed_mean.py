"""The coordinate-wise weighted trimmed mean (Yin et al. 2018, with weights)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedtorch.algorithms.robust.base import Bucket, CoordinateRule, WindowedUpdates


@dataclass(frozen=True)
class TrimmedMean(CoordinateRule):
    """Takes for every number by itself the mean, by weight, without the share `trim` of all weight at either end.

    A client across the border counts with what of its weight is inside. It stands attackers of up to that share.
    """

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """of the weight of all clients, at either end; 0: plain averaging, to the bit"""

    def of_buckets(self, updates: WindowedUpdates, buckets: Sequence[Bucket]) -> tuple[Tensor, list[float]]:
        """Nothing to trim leaves the weighted sum."""
        if self.trim:
            return super().of_buckets(updates, buckets)
        weights = [0.0] * len(updates.reports)
        for bucket in buckets:
            for place, share in zip(bucket.places, bucket.shares, strict=True):
                weights[place] = bucket.weight * share
        return updates.weighted_sum(weights), [1.0] * len(buckets)

    def of_values(self, rows: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Added in the order of values, one after the other: the same bits on any number of threads."""
        values, order = rows.sort(dim=0, stable=True)
        reached = whole[order].cumsum(dim=0)
        total = int(whole.sum())
        lowest = round(self.trim * total)
        highest = total - lowest
        sums = torch.zeros(rows.shape[1], dtype=torch.float64)
        counted = torch.zeros(len(whole), dtype=torch.float64)
        begun = torch.zeros(rows.shape[1], dtype=torch.int64)
        for value, place, end in zip(values, order, reached, strict=True):
            inside = (end.clamp(max=highest) - begun.clamp(min=lowest)).clamp_(min=0).double()
            sums += inside * value
            counted.index_add_(0, place, inside)
            begun = end
        return sums / (highest - lowest), counted / whole
