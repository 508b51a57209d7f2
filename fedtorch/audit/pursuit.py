"""Fewer directions than tokens: which few candidates together span the rows of an update, as those of an adapter do.

A factor of rank r gets r sums of the same T inputs, each with other weights. No input lies in the space of so few sums,
but the T inputs are the few candidates that explain all of them at once: simultaneous matching pursuit, in its
rank-aware form (Davies and Eldar 2012, 1004.4529, algorithm 4).
"""

from __future__ import annotations

import torch
from torch import Tensor

UNEXPLAINED = 0.02
"""The share of the rows that may be left over: candidates are named only where they explain the rest. Strangers come
there only in numbers near the layer's width."""
_LEAST = 1e-3
"""Directions with less than this share of the largest are taken for rounding."""


def pursued(basis: Tensor, candidates: Tensor, most: int) -> list[int]:
    """The candidates that together span `basis`, by the order in which they were found; none if `most` do not suffice.

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
