"""Losses of single rows that say which of two answers is better, or whether one is good.

B rows. h is how much more than the reference the model prefers the chosen answer to the rejected one:
h = (log π − log π_ref)(chosen) − (log π − log π_ref)(rejected).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo(h_B: Tensor, beta: float, smoothing: float = 0.0) -> Tensor:
    """−(1 − ε) log σ(βh) − ε log σ(−βh): Rafailov et al. 2023, Eqn. 7; with ε Mitchell's conservative DPO."""
    return -(1 - smoothing) * logsigmoid(beta * h_B) - smoothing * logsigmoid(-beta * h_B)


def ipo(h_B: Tensor, beta: float) -> Tensor:
    """(h − 1/(2β))²: Azar et al. 2023, Eqn. 17, whose τ is β here."""
    return (h_B - 1 / (2 * beta)) ** 2


def kto(ratios_B: Tensor, kl: Tensor, is_desirable_B: Tensor, beta: float, weights: tuple[float, float]) -> Tensor:
    """λ_D (1 − σ(β(r − z))) of a desirable answer, λ_U (1 − σ(β(z − r))) of another: Ethayarajh et al. 2024, Eqn. 8.

    ratios_B: r = log π − log π_ref of each answer. kl: z, a scalar. weights: λ_D, λ_U.
    """
    off = beta * (ratios_B - kl)
    desirable, undesirable = weights
    return torch.where(is_desirable_B, desirable * (1 - torch.sigmoid(off)), undesirable * (1 - torch.sigmoid(-off)))


def kl_estimate(ratios_B: Tensor, counts_B: Tensor) -> Tensor:
    """z = max(0, mean log-ratio of prompts with answers to other prompts), without a gradient; 0 where there are none.

    counts_B: which of them there are.
    """
    of_others = torch.where(counts_B, ratios_B.detach(), torch.zeros_like(ratios_B))
    return (of_others.sum() / counts_B.sum().clamp(min=1)).clamp(min=0.0)
