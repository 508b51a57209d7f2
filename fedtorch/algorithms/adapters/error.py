"""Error of averaging the factors of a product one by one, measured every round.

Clients end with (A_i, B_i) and weights p_i that add up to 1. The mean of their products is not the product of means:

    Σ p_i B_i A_i − B̄ Ā = Σ p_i (B_i − B̄)(A_i − Ā).

Nothing is lost where all clients have one of the factors in common. Of the right side stacked factors are made, so that
no matrix of a layer's own size is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedtorch.algorithms.adapters.factors import norm_of_product, pairs_of, stacked
from fedtorch.core.scores import AGGREGATION_ERROR
from fedtorch.core.weights import Layout


def figures(
    layout: Layout, private: Layout | None, received: Tensor, updates: Iterable[Tensor], weights: Sequence[float]
) -> dict[str, float]:
    """`AGGREGATION_ERROR` of a round, over all layers: the norm of the difference / that of the product's true change.

    layout: of what is shared; private: of what every client keeps for itself. received: the weights that clients began
    with, flat. updates: what each sent, received − trained, possibly with further vectors behind. Nothing where no
    factors travel, or where the other one is private; 0 where one of them is fixed.
    """
    pairs = pairs_of(layout)
    if not pairs or (private is not None and pairs_of(private)):
        return {}
    if not any(pair.a and pair.b for pair in pairs):
        return {AGGREGATION_ERROR: 0.0}
    # an update is valid only until the next one is taken
    kept = [layout.view(update[: layout.size].clone()) for update in updates]
    begun, total = layout.view(received), math.fsum(weights)
    shares = [weight / total for weight in weights] if total else []
    lost = changed = 0.0
    for pair in pairs:
        if pair.a and pair.b and shares:
            moved = [(update[pair.a], update[pair.b]) for update in kept]
            error, change = _layer(begun[pair.a], begun[pair.b], moved, shares)
            lost, changed = math.hypot(lost, error), math.hypot(changed, change)
    return {AGGREGATION_ERROR: lost / changed if changed else 0.0}


def _layer(
    a: Tensor, b: Tensor, moved: Sequence[tuple[Tensor, Tensor]], shares: Sequence[float]
) -> tuple[float, float]:
    """(norm of what is lost, norm of the true change) of one layer's product.

    moved: of each client a − A_i and b − B_i. The change Σ p_i B_i A_i − B A is taken as
    Σ p_i (B_i − B) A_i + B (Ā − A), of small terms.
    """
    a, b = a.double(), b.double()
    steps = [(da.double(), db.double()) for da, db in moved]
    mean_a, mean_b = torch.zeros_like(a), torch.zeros_like(b)
    for p, (da, db) in zip(shares, steps, strict=True):
        mean_a, mean_b = mean_a + p * da, mean_b + p * db
    lost = stacked(
        [p * (db - mean_b) for p, (_, db) in zip(shares, steps, strict=True)], [da - mean_a for da, _ in steps]
    )
    changed = stacked([*(-p * db for p, (_, db) in zip(shares, steps, strict=True)), -b],
                      [*(a - da for da, _ in steps), mean_a])  # fmt: skip
    return norm_of_product(*lost), norm_of_product(*changed)
