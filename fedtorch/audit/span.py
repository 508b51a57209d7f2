"""Which tokens an update's first matrix was made of, by the space that it spans: three ways, from exact to likely.

One or a few steps of SGD leave sums of the inputs themselves, so that each of them lies in the space (DAGER, Petrov et
al. 2024, 2405.15586). An adapter leaves fewer sums than inputs (`pursuit`). Steps of AdamW leave every direction, but
those of the inputs lead: a candidate with far more of its length there than others at its place is one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

UNEXPLAINED = 0.02
"""The share of the rows that may be left over: candidates are named only where they explain the rest. Strangers come
there only in numbers near the layer's width."""
_LEAST = 1e-3
"""Directions with less than this share of the largest are taken for rounding."""
THRESHOLD = 0.02
"""A candidate of which less than this share is outside the space counts as one of the client's. Rounding of fp32 and a
few local steps leave some 10^-3; a stranger has √(1 − rank / width)."""
BLOCK = 4096
"""Candidates at a time."""
CUTS = tuple(10.0**-power for power in range(1, 8))
"""Shares of the largest singular value below which directions are taken for noise; the best one is kept."""
LEADING = 0.5
"""The share of the layer's width whose directions are taken for the leading ones. With half of them strangers' energies
are spread evenly around their mean, and their largest one is as far off as that of normal numbers."""
LOW_RANK = 0.25
"""Updates of at most this share of the layer's width are pursued; of a larger rank inputs are found by themselves."""
SHORTLIST = 1 << 15
"""Candidates with most energy that are pursued: a few hundred MB of a wide layer."""


@dataclass(frozen=True)
class SpanFound:
    """Pairs of token and place (from 0) that a check found."""

    rank: int
    """of the space that was used"""
    width: int
    """of the layer; at this rank every candidate is inside"""
    pairs: frozenset[tuple[int, int]]
    """the candidates inside"""
    has_places: bool = True
    """does what a token gives depend on its place? If not all places are 0"""
    how: str = "span"
    """`span`: each lies in the space; `pursuit`: together they span it; `energy`: they stand out in its leading half"""


def bases(update: Tensor, weight: Tensor, width: int) -> Iterator[Tensor]:
    """Orthonormal bases, shape (width, rank), of the space that inputs span; of every rank worth trying, below width.

    update, weight: the matrix's difference and value, of shape (out, width) or (width, out). The difference was taken
    in fp32, so what is below the rounding of the weights themselves is no direction.
    """
    rows = update.double() if update.shape[-1] == width else update.double().T
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    rounding = _rounding(weight, rows)
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
    """The (token, place) whose input to the matrix the update was made of, by the first way that finds some.

    inputs: tokens of shape (B, T) -> inputs of the matrix (B, T, width). Of the ranks that singular values suggest the
    one is taken with most candidates inside, but no more than it has dimensions: so many independent inputs it can
    hold, and more mean that strangers pass. The attacker needs no more than the weights and the update for that.
    """
    tried = list(bases(update, weight, width))
    leading = _leading(update, weight, width)
    if leading is None:
        return SpanFound(0, width, frozenset())
    inside: list[set[tuple[int, int]]] = [set() for _ in tried]
    energies, has_places = [], True
    for tokens, x, matter in _blocks(inputs, vocabulary, places):
        has_places = matter
        lengths = x.norm(dim=-1).clamp_min(1e-30)
        energies.append((x @ leading).square().sum(-1) / lengths**2)
        for found, basis in zip(inside, tried, strict=True):
            # ‖x − RRᵀx‖² = ‖x‖² − ‖Rᵀx‖² loses half of the digits, which still is far below the threshold
            outside = ((lengths**2 - (x @ basis).square().sum(-1)).clamp_min(0).sqrt() / lengths) < threshold
            found.update((int(tokens[row]), int(place)) for row, place in outside.nonzero().tolist())
    energy = torch.cat(energies)
    best = SpanFound(0, width, frozenset(), has_places)
    for found, basis in zip(inside, tried, strict=True):
        rank = basis.shape[1]
        if len(best.pairs) < len(found) <= rank + 1:
            best = SpanFound(rank, width, frozenset(found), has_places)
    rank = leading.shape[1]
    if best.pairs:
        return best
    if rank <= LOW_RANK * width and (pairs := _pursue(leading, energy, inputs, places, has_places)):
        return SpanFound(rank, width, frozenset(pairs), has_places, "pursuit")
    if rank == int(LEADING * width):
        return SpanFound(rank, width, frozenset(outstanding(energy)), has_places, "energy")
    return best


def outstanding(energy: Tensor) -> set[tuple[int, int]]:
    """The (token, place) that have far more energy than other tokens at the place.

    energy: shape (tokens, places). So far: further from the mean, in standard deviations, than the largest of as many
    normal numbers is expected to be.
    """
    spread = energy.std(0).clamp_min(1e-12) if len(energy) > 1 else torch.ones_like(energy[0])
    away = (energy - energy.mean(0)) / spread
    return {(token, place) for token, place in (away > math.sqrt(2 * math.log(energy.numel() + 1))).nonzero().tolist()}


def _leading(update: Tensor, weight: Tensor, width: int) -> Tensor | None:
    """The update's leading directions, shape (width, rank), no more than `LEADING` of the width; None: it has none."""
    rows = update.double() if update.shape[-1] == width else update.double().T
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    rank = min(int((values > _rounding(weight, rows)).sum()), max(1, int(LEADING * width)))
    return right[:rank].T if rank else None


def _rounding(weight: Tensor, rows: Tensor) -> float:
    """Singular values below this may come from the rounding of the weights, of which the update is a difference."""
    return 2**-24 * float(weight.abs().max()) * sum(math.sqrt(side) for side in rows.shape)


def _blocks(inputs: Callable[[Tensor], Tensor], vocabulary: int, places: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """(tokens, their inputs of shape (tokens, places, width), does the place matter?) for the whole vocabulary."""
    size, has_places = max(1, BLOCK // places), True
    for start in range(0, vocabulary, size):
        tokens = torch.arange(start, min(vocabulary, start + size))
        x = inputs(tokens[:, None].expand(-1, places if has_places else 1).contiguous()).double()
        if has_places and places > 1 and torch.allclose(x[:, :1], x[:, 1:2], atol=1e-6):
            x, has_places = x[:, :1], False  # no table of places: one place stands for all
        yield tokens, x, has_places


def _pursue(
    basis: Tensor, energy: Tensor, inputs: Callable[[Tensor], Tensor], places: int, has_places: bool
) -> set[tuple[int, int]]:
    """The (token, place) that together span the basis, among those with most energy in it."""
    count, width = min(SHORTLIST, energy.numel()), basis.shape[0]
    pairs = [divmod(one, energy.shape[1]) for one in energy.flatten().topk(count).indices.tolist()]
    rows, size = list[Tensor](), max(1, BLOCK // places)
    for start in range(0, count, size):
        tokens, at = torch.tensor(pairs[start : start + size]).T
        x = inputs(tokens[:, None].expand(-1, places if has_places else 1).contiguous()).double()
        rows.append(x[torch.arange(len(x)), at])
    found = pursued(basis, torch.cat(rows), most=width // 2)
    return {pairs[one] for one in found}


def pursued(basis: Tensor, candidates: Tensor, most: int) -> list[int]:
    """The candidates that together span `basis`, by the order in which they were found; none if `most` do not suffice.

    A factor of an adapter, of rank r, gets r sums of the same T inputs, each with other weights. No input lies in the
    space of so few sums, but the T inputs are the few candidates that explain all of them at once: simultaneous
    matching pursuit, in its rank-aware form (Davies and Eldar 2012, 1004.4529, algorithm 4).

    basis: orthonormal, shape (width, rank). candidates: shape (n, width), float64, none of them zero.
    """
    atoms = candidates / candidates.norm(dim=1, keepdim=True)
    chosen: list[int] = []
    left, rest = torch.ones(len(atoms), dtype=torch.float64), basis
    spanned = basis.new_zeros(basis.shape[0], 0)
    while len(chosen) < min(most, len(atoms)):
        directions = _directions(rest)
        gain = (atoms @ directions).square().sum(1) / left.clamp_min(1e-6)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        fresh = atoms[best] - spanned @ (spanned.T @ atoms[best])
        fresh = fresh - spanned @ (spanned.T @ fresh)  # twice, or rounding adds up over many of them
        fresh = fresh / fresh.norm().clamp_min(1e-12)
        spanned = torch.cat([spanned, fresh[:, None]], 1)
        left -= (atoms @ fresh).square()
        rest = basis - spanned @ (spanned.T @ basis)
        if float(rest.norm() / basis.norm()) < UNEXPLAINED:
            return chosen
    return []


def _directions(rest: Tensor) -> Tensor:
    """An orthonormal basis of what is not explained yet, shape (width, at most rank)."""
    left, values, _ = torch.linalg.svd(rest, full_matrices=False)
    return left[:, values > _LEAST * values[0]]
