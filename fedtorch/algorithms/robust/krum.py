"""Krum and multi-Krum (Blanchard et al. 2017): the updates that have the most others close by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtorch.algorithms.robust.base import LinearRule, Matrix
from fedtorch.core.ranges import Count, Whole


@dataclass(frozen=True)
class Krum(LinearRule):
    """The one update with the smallest sum of squared distances to its n − f − 2 nearest others.

    Clients are counted, not weighed, in the distances: the f attackers are clients. Sizes decide between equal sums
    only, so that the round's result is one client's, of whatever size; `multi_krum` averages by size.
    """

    attackers: Whole = 1
    """f: so many clients may be attackers; a round needs 2f + 3"""

    @property
    def least(self) -> int:
        """Section 4 of the paper: 2f + 2 < n."""
        return 2 * self.attackers + 3

    def weights(self, weights: Sequence[float], products: Matrix) -> list[float]:
        """All weight is that of the chosen ones, by theirs; where all are chosen it stays as it is, to the bit."""
        number = self.number(len(weights))
        if number >= len(weights):
            return list(weights)
        chosen = set(ranking(products, weights, self.attackers)[:number])
        total = math.fsum(weights)
        held = math.fsum(weights[place] for place in chosen)
        return [total * (w / held) if place in chosen else 0.0 for place, w in enumerate(weights)]

    def number(self, clients: int) -> int:
        """How many of so many clients are kept."""
        return 1


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean, by weight, of the `keep` updates with the smallest such sums."""

    keep: Count | None = None
    """how many; null: n − f"""

    def number(self, clients: int) -> int:
        """`keep`."""
        return self.keep if self.keep is not None else clients - self.attackers


def ranking(products: Matrix, weights: Sequence[float], attackers: int) -> list[int]:
    """All places by their scores, the smallest first; at a tie the larger weight, then the smaller norm."""
    found = scores(products, attackers)
    return sorted(range(len(found)), key=lambda place: (found[place], -weights[place], products[place, place]))


def scores(products: Matrix, attackers: int) -> list[float]:
    """Sum of the n − f − 2 smallest squared distances to others, for each client.

    In pairs of clients the two distances are one number, so equal scores are equal to the bit.
    """
    count = len(products)
    squares = [
        sorted(
            max(0.0, math.fsum((products[i, i], products[j, j], -2 * products[i, j]))) for j in range(count) if j != i
        )
        for i in range(count)
    ]
    return [math.fsum(row[: count - attackers - 2]) for row in squares]
