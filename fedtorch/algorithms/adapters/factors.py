"""The factors A and B of adapters by the names in a Layout, and products of factors that are never formed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedtorch.core.places import Places
from fedtorch.core.weights import Layout

A, B = ".lora_A.", ".lora_B."


class Pair(NamedTuple):
    """One layer's factors; an empty name where that factor does not travel."""

    a: str
    """of A, shape (r, d_in)"""
    b: str
    """of B, shape (d_out, r)"""


def pairs_of(layout: Layout) -> list[Pair]:
    """Every layer of which a factor is in the layout, in its order."""
    names, found = set(layout.names), dict[str, Pair]()
    for name in layout.names:
        for own, other in ((A, B), (B, A)):
            if own in name:
                both = {own: name, other: name.replace(own, other)}
                pair = Pair(*(both[each] if both[each] in names else "" for each in (A, B)))
                found.setdefault(both[A], pair)
    return list(found.values())


def norm_of_product(left: Tensor, right: Tensor) -> float:
    """‖left · right‖_F of (d_out, k) and (k, d_in) in float64, by QR of both: squares would lose half the digits."""
    if not left.numel() or not right.numel():
        return 0.0
    left, right = left.double(), right.double()
    upper = torch.linalg.qr(left, mode="r").R if left.shape[0] > left.shape[1] else left
    lower = torch.linalg.qr(right.T, mode="r").R.T if right.shape[1] > right.shape[0] else right
    return float(torch.linalg.matrix_norm(upper @ lower))


def stacked(left: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(d_out, Σ k_i) and (Σ k_i, d_in), whose product is Σ left_i · right_i."""
    return torch.cat([each.double() for each in left], 1), torch.cat([each.double() for each in right], 0)


@lru_cache(maxsize=64)
def rank_places(layout: Layout, rank: int) -> Places:
    """The first `rank` rows of every A and columns of every B, and all of what is no factor."""
    parts = []
    for name, shape, start, size in zip(layout.names, layout.shapes, layout.offsets, layout.sizes, strict=True):
        indices = torch.arange(start, start + size).view(shape)
        if A in name:
            indices = indices[:rank]
        elif B in name:
            indices = indices[:, :rank]
        parts.append(indices.reshape(-1))
    return Places(torch.cat(parts), layout.size)


@lru_cache(maxsize=4)
def places_without(layout: Layout, kind: str) -> Places:
    """All but the factors `A` or `B`."""
    return Places.of_names(layout, [name for name in layout.names if kind not in name])
