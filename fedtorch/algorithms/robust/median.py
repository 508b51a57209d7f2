"""The coordinate-wise weighted median (Yin et al. 2018, with weights)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtorch.algorithms.robust.base import CoordinateRule


@dataclass(frozen=True)
class Median(CoordinateRule):
    """Takes for every number by itself the value with half of the clients' weight below it and half above.

    Where a value divides the weight exactly in two halves it is the mean of that value and of the next one, so that
    clients of one size have the ordinary median. It stands attackers of less than half of the weight.
    A client's kept share is that of numbers of which its value is the median, or one of the two.
    """

    def of_values(self, rows: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """The first value that reaches half of the weight, and the first that exceeds it; mostly the same."""
        values, order = rows.sort(dim=0, stable=True)
        twice = 2 * whole[order].cumsum(dim=0)
        half, slack = int(whole.sum()), len(whole)  # each whole weight is rounded by up to a half
        first = (twice < half - slack).sum(dim=0, keepdim=True)
        second = (twice <= half + slack).sum(dim=0, keepdim=True).clamp_(max=len(whole) - 1)
        low, high = values.gather(0, first)[0].double(), values.gather(0, second)[0].double()
        counted = torch.bincount(order.gather(0, first)[0], minlength=len(whole)).double()
        others = order.gather(0, second)[0][(first != second)[0]]
        return (low + high) / 2, counted + torch.bincount(others, minlength=len(whole))
