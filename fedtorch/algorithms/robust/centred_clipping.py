"""Centred clipping (Karimireddy et al. 2021): differences from a centre are clipped, and the centre moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtorch.algorithms.robust.base import LinearRule, Matrix
from fedtorch.core.ranges import Count, Positive


@dataclass(frozen=True)
class CentredClipping(LinearRule):
    """v ← v + Σ w_i (Δ_i − v) min(1, tau / ‖Δ_i − v‖), `steps` times, Algorithm 2, with w_i in place of 1/n.

    The paper starts from the last round's result, and clients send momenta. Here it starts from 0 in every round, so
    that nothing is kept and a resumed run needs nothing; the first step is then norm clipping, the others correct it.
    """

    tau: Positive | None = None
    """the largest difference that counts; null: no limit, which is plain averaging"""
    steps: Count = 3
    """how often the centre moves; costs no pass over the updates"""

    def weights(self, weights: Sequence[float], products: Matrix) -> list[float]:
        """v = Σ c_i Δ_i: what follows is about the c_i. Where nothing is clipped they are the weights, to the bit."""
        if self.tau is None:
            return list(weights)
        total = math.fsum(weights)
        shares = [weight / total for weight in weights]
        centre = [0.0] * len(weights)
        for _ in range(self.steps):
            distances = distances_from(centre, products)
            factors = [1.0 if d <= self.tau else self.tau / d for d in distances]
            if all(factor == 1.0 for factor in factors):
                return list(weights)  # the mean, wherever the centre was
            rest = 1.0 - math.fsum(p * f for p, f in zip(shares, factors, strict=True))
            centre = [c * rest + p * f for c, p, f in zip(centre, shares, factors, strict=True)]
        return [c * total for c in centre]


def distances_from(centre: Sequence[float], products: Matrix) -> list[float]:
    """‖Δ_i − Σ c_j Δ_j‖ of each i, from the inner products; 0 where rounding would make a square negative."""
    coefficients = np.asarray(centre)
    to_centre = [math.fsum(row * coefficients) for row in products]
    own = math.fsum(c * product for c, product in zip(centre, to_centre, strict=True))
    squares = [math.fsum((products[i, i], -2 * to_centre[i], own)) for i in range(len(products))]
    return [math.sqrt(max(0.0, square)) for square in squares]
