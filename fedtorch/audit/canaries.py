"""Three figures of canaries: the bound of one run, a fit of two normal distributions, and the spread of those left out.

Each canary is in by a fair coin, in a direction of its own, which nobody else touches. The bound holds whatever the
mechanism is, and is nearly blind. The fit is an estimate with an interval, right where both distributions are normal.
The spread sees too little noise for certain, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

import torch
from torch import Tensor

from fedtorch.audit.gaussians import gaussian_epsilon

LEVEL = 0.05
"""A claim is refuted, or an interval misses, with at most this probability."""
QUANTILE = 1e-3
"""Noise whose spread is below this quantile of the promised one's is too little."""
GUESSED = 5
"""One of so many canaries is guessed: those with the highest scores in, as many with the lowest out."""
MOST = 30.0


@dataclass(frozen=True)
class Canaries:
    """Figures of one run's canaries, beside the epsilon that is claimed."""

    claimed: float
    """epsilon of all its rounds"""
    bound: float
    """epsilon is at least this, with 95 % (Steinke, Nasr and Jagielski 2023)"""
    fit: tuple[float, float, float]
    """epsilon of two normal distributions that are fitted to the scores: estimate, low and high end of its 95 %"""
    spread: float
    """the least share of the promised variance, of a round's noise or of the difference of two rounds'"""
    chance: float
    """of a spread so small under the promised noise, over all that were looked at"""

    @property
    def flags(self) -> list[str]:
        """Which figures contradict the claim."""
        said = {
            "bound": self.bound > self.claimed,
            "fit": self.fit[1] > self.claimed,
            "spread": self.chance < QUANTILE,
        }
        return [name for name, is_flagged in said.items() if is_flagged]


def judged(presence: Tensor, is_in: Tensor, rate: float, noise: float, claimed: float, delta: float) -> Canaries:
    """The three figures.

    presence: shape (rounds, directions), what is released along each direction, in units of the clip: 1 where a canary
    took part, 0 where none did, with noise of deviation `noise`. is_in: shape (canaries,), bool, of the first of the
    directions; in the others there never is one.
    """
    each = torch.logaddexp(
        torch.tensor(math.log1p(-rate) if rate < 1 else -math.inf, dtype=torch.float64),
        math.log(rate) + (presence[:, : len(is_in)].double() - 0.5) / noise**2,
    )
    scores = each.sum(0)  # the likelihood ratio over the rounds
    guessed = 2 * max(1, len(is_in) // GUESSED // 2)
    order = scores.argsort()
    right = int(is_in[order[-guessed // 2 :]].sum()) + int((~is_in[order[: guessed // 2]]).sum())
    bound = one_run_bound(len(is_in), guessed, right, delta)
    fit = gaussian_fit(scores[is_in].tolist(), scores[~is_in].tolist(), delta)
    out = torch.ones(presence.shape[1], dtype=torch.bool)
    out[: len(is_in)] = ~is_in
    return Canaries(claimed, bound, fit, *spread(presence[:, out].double() / noise))


def one_run_bound(canaries: int, guesses: int, right: int, delta: float) -> float:
    """The largest epsilon that so many right guesses refute; 0: none.

    Steinke, Nasr and Jagielski 2023 (2305.08846): refuted if β + 2mδα < .05, β = P[Bin(r, 1/(1+e^-ε)) ≥ v],
    α = max_i P[v − i ≤ Bin < v] / i. Canaries of one run are not independent, so no interval of Clopper and Pearson is
    taken over them.
    """
    low, high = 0.0, MOST
    if not _refuted(canaries, guesses, right, 0.0, delta):
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _refuted(canaries, guesses, right, middle, delta) else (low, middle)
    return low


def _refuted(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> bool:
    win, lose = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    mass = [
        math.exp(
            math.lgamma(guesses + 1)
            - math.lgamma(v + 1)
            - math.lgamma(guesses - v + 1)
            + v * win
            + (guesses - v) * lose
        )
        for v in range(guesses + 1)
    ]
    under, alpha = 0.0, 0.0
    for i in range(1, right + 1):
        under += mass[right - i]
        alpha = max(alpha, under / i)
    return math.fsum(mass[right:]) + 2 * canaries * delta * alpha < LEVEL


def gaussian_fit(
    inside: Sequence[float], outside: Sequence[float], delta: float, level: float = LEVEL
) -> tuple[float, float, float]:
    """Epsilon from (mean in − mean out) / sd, with the ends of its interval.

    level: what is outside of the interval, half at each end. sd: pooled, of both.
    Fewer than two canaries on a side tell nothing.
    """
    ins, outs = len(inside), len(outside)
    if min(ins, outs) < 2:
        return 0.0, 0.0, math.inf
    pooled = ((ins - 1) * variance(inside) + (outs - 1) * variance(outside)) / (ins + outs - 2)
    shift = (fmean(inside) - fmean(outside)) / max(math.sqrt(pooled), 1e-12)
    error = math.sqrt(1 / ins + 1 / outs + shift**2 / (2 * (ins + outs - 2)))
    reach = NormalDist().inv_cdf(1 - level / 2) * error
    low, middle, high = (_shifted(one, delta) for one in (shift - reach, shift, shift + reach))
    return middle, low, high


def _shifted(shift: float, delta: float) -> float:
    return gaussian_epsilon(1 / shift, delta) if shift > 1e-6 else 0.0


def spread(noise: Tensor) -> tuple[float, float]:
    """The least variance of a round's numbers, and of two rounds' differences over √2; and the chance of one so small.

    noise: shape (rounds, numbers), promised to be independent of deviation 1. One noise on two rounds leaves a
    difference of nothing. The chance is that of χ² (Wilson and Hilferty 1931), times how many were looked at.
    """
    rounds, numbers = noise.shape
    looked = [float(one.square().mean()) for one in noise]
    looked += [
        float((noise[one] - noise[other]).square().mean()) / 2 for other in range(rounds) for one in range(other)
    ]
    least, width = min(looked), 2 / (9 * numbers)
    below = NormalDist().cdf((least ** (1 / 3) - (1 - width)) / math.sqrt(width))
    return least, min(1.0, below * len(looked))
