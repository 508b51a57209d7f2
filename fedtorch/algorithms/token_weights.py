"""Weights of a pseudo label's tokens from their energies (FewFedWeight, eq. 4 and readings of it)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

TokenWeighting = Literal["clamp", "literal", "softmax", "uniform"]

FLOOR = 1e-3
"""Smallest confidence −E that `clamp` lets through."""


def token_weights(
    energies: Sequence[Sequence[float]], how: TokenWeighting, *, tau: float = 1.0
) -> tuple[list[list[float]], int]:
    """(weights that sum to 1 in each row, tokens that were clamped), computed in fp64.

    clamp: max(−E, FLOOR) / Σ, the safe reading of eq. 4: equal to it where every −E is at least FLOOR, never
    negative, uniform where all are below. literal: eq. 4, −E / Σ(−E), whose weights leave [0, 1] where E changes sign
    within a row. softmax: ∝ exp(−E / tau). uniform: 1 / length.
    A NaN energy marks a token that was forced: weight 0, and it counts for nothing. A row without any other token
    has weights 0; one whose literal sum is 0 has uniform ones.
    """
    weights, clamped = [], 0
    for row in energies:
        energy = torch.tensor(row, dtype=torch.float64)
        known = ~energy.isnan()
        confidence = torch.where(known, -energy, 0.0)
        if how == "clamp":
            low = known & (confidence < FLOOR)
            clamped += int(low.sum())
            raw = torch.where(low, FLOOR, confidence)
        elif how == "softmax":
            raw = torch.where(known, confidence / tau, -math.inf).softmax(0) if known.any() else confidence
        else:
            raw = confidence if how == "literal" else known.double()
        total = raw.sum()
        if total == 0:
            raw, total = known.double(), known.double().sum().clamp(min=1)
        weights.append((raw / total).tolist())
    return weights, clamped
