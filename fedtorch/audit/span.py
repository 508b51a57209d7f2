"""Which tokens lie in the column space of an update's first matrix (DAGER, Petrov et al. 2024, 2405.15586)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

THRESHOLD = 0.02
"""A candidate of which less than this share is outside the space counts as one of the client's. Rounding of fp32 and a
few local steps leave some 10^-3; a stranger has √(1 − rank / width)."""
BLOCK = 4096
"""Candidates at a time."""
CUTS = tuple(10.0**-power for power in range(1, 8))
"""Shares of the largest singular value below which directions are taken for noise; the best one is kept."""


@dataclass(frozen=True)
class SpanFound:
    """What a check found; pairs of token and place, from 0."""

    rank: int
    """of the space that was used"""
    width: int
    """of the layer; at this rank every candidate is inside"""
    pairs: frozenset[tuple[int, int]]
    """the candidates inside"""
    has_places: bool = True
    """does what a token gives depend on its place? If not all places are 0"""


def bases(update: Tensor, weight: Tensor, width: int) -> Iterator[Tensor]:
    """Orthonormal bases, shape (width, rank), of the space that inputs span; of every rank worth trying, below width.

    update, weight: the matrix's difference and value, of shape (out, width) or (width, out). The difference was taken
    in fp32, so what is below the rounding of the weights themselves is no direction.
    """
    rows = update.double() if update.shape[-1] == width else update.double().T
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    rounding = 2**-24 * float(weight.abs().max()) * sum(math.sqrt(side) for side in rows.shape)
    largest, tried = float(values[0]), set[int]()
    for cut in CUTS:
        rank = int((values > max(cut * largest, rounding)).sum())
        if 0 < rank < width and rank not in tried:
            tried.add(rank)
            yield right[:rank].T


def check(
    update: Tensor,
    weight: Tensor,
    *,
    inputs: Callable[[Tensor], Tensor],
    vocabulary: int,
    places: int,
    width: int,
    threshold: float = THRESHOLD,
) -> SpanFound:
    """The (token, place) whose input to the matrix lies in the update's space.

    inputs: tokens of shape (B, T) -> inputs of the matrix (B, T, width). Of the ranks that singular values suggest the
    one is taken with most candidates inside, but no more than it has dimensions: so many independent inputs it can
    hold, and more mean that strangers pass. The attacker needs no more than the weights and the update for that.
    """
    best, has_places = SpanFound(0, width, frozenset()), True
    tried = list(bases(update, weight, width))
    inside: list[set[tuple[int, int]]] = [set() for _ in tried]
    size = max(1, BLOCK // places)
    for start in range(0, vocabulary if tried else 0, size):
        tokens = torch.arange(start, min(vocabulary, start + size))
        x = inputs(tokens[:, None].expand(-1, places).contiguous()).double()
        if places > 1 and torch.allclose(x[:, :1], x[:, 1:2], atol=1e-6):
            x, has_places = x[:, :1], False  # no table of places: one place stands for all
        lengths = x.norm(dim=-1).clamp_min(1e-30)
        for found, basis in zip(inside, tried, strict=True):
            # ‖x − RRᵀx‖² = ‖x‖² − ‖Rᵀx‖² loses half of the digits, which still is far below the threshold
            outside = ((lengths**2 - (x @ basis).square().sum(-1)).clamp_min(0).sqrt() / lengths) < threshold
            found.update((int(tokens[row]), int(place)) for row, place in outside.nonzero().tolist())
    for found, basis in zip(inside, tried, strict=True):
        rank = basis.shape[1]
        if len(best.pairs) < len(found) <= rank + 1:
            best = SpanFound(rank, width, frozenset(found), has_places)
    return best
