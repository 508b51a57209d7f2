"""The factors A and B of adapters by the names in a Layout, and products of factors that are never formed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
def places_without(layout: Layout, *kinds: str) -> Places:
    """All but the factors `A` or `B`, or both."""
    return Places.of_names(layout, [name for name in layout.names if not any(kind in name for kind in kinds)])


def layer_of(pair: Pair) -> str:
    """The name of the layer whose factors these are."""
    return pair.a.partition(A)[0]


def to_rows(layout: Layout, factors: Mapping[Pair, tuple[Tensor, Tensor]]) -> Tensor:
    """One product of every layer as a matrix of k rows: for each rank a column of `left`, then a row of `right`.

    Layers stand side by side in the layout's order, Σ (d_out + d_in) numbers wide, in its dtype; a lower rank than k is
    filled with 0. So products are added by laying such matrices end to end, and one flat vector has them all.
    """
    count = max((len(right) for _, right in factors.values()), default=0)
    parts = []
    for left, right in factors.values():
        part = torch.zeros(count, left.shape[0] + right.shape[1], dtype=layout.dtype)
        part[: len(right)] = torch.cat([left.T, right], 1)
        parts.append(part)
    return torch.cat(parts, 1)


def from_rows(layout: Layout, flat: Tensor) -> dict[Pair, tuple[Tensor, Tensor]]:
    """Views of every layer in what `to_rows` gave, flat or not: left, shape (d_out, k), and right, (k, d_in)."""
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    pairs = pairs_of(layout)
    widths = [width for pair in pairs for width in (shapes[pair.b][0], shapes[pair.a][1])]
    parts = flat.view(flat.numel() // sum(widths), sum(widths)).split(widths, 1)
    return {pair: (left.T, right) for pair, left, right in zip(pairs, parts[::2], parts[1::2], strict=True)}
