"""The k numbers of largest magnitude in a long vector: exactly k of them, the lowest index first at a tie."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from fedtorch.seeds import generator_for

# A threshold from so many numbers leaves a few per cent too many candidates. Larger samples only cost time.
SAMPLE = 200_000
# 10 % more candidates than needed: with 2,000 of the sample above the threshold that is 4.5 standard deviations.
_SLACK = 1.1


def count_of(ratio: float, size: int) -> int:
    """k = max(1, ceil(ratio · size)); 0 for an empty tensor. The ratio is taken as the fraction it stands for.

    0.07 · 100 is 7.000000000000001 in binary, but k is 7; likewise 0.0833333333 is 1/12.
    """
    if size == 0:
        return 0
    return min(size, max(1, math.ceil(Fraction(ratio).limit_denominator(1_000_000) * size)))


def largest(flat: Tensor, k: int, *, sampled: bool = False) -> Tensor:
    """Indices of the k largest |entries|: int64, shape (k,), ascending.

    flat: shape (n,), finite. 0 <= k <= n. sampled: a threshold is taken from a sample and only what passes it is
    looked at closely; the result is the same, the time a fraction (DGC's sampling, which sends *about* k).

    Raises:
        ValueError: k is out of range, or the vector has NaN (infinities are the largest entries).
    """
    size = flat.numel()
    if not 0 <= k <= size:
        raise ValueError(f"{k} entries of a vector of {size} were asked for; expected 0 to {size}")
    if k in (0, size):
        return torch.arange(k, device=flat.device)
    magnitudes = flat.abs()
    if magnitudes.max().isnan():
        raise ValueError("a vector with NaN has no largest entries")
    if not sampled or size <= 4 * SAMPLE:
        return _exact(magnitudes, k)
    generator = generator_for(0, "top-k sample", size)
    picked = magnitudes[torch.randint(size, (SAMPLE,), generator=generator).to(flat.device)]
    rank = max(1, int(SAMPLE * (1 - _SLACK * k / size)))
    candidates = (magnitudes >= picked.kthvalue(rank).values).nonzero().squeeze(1)
    if candidates.numel() < k:
        return _exact(magnitudes, k)
    return candidates[_exact(magnitudes[candidates], k)] if candidates.numel() > k else candidates


def _exact(magnitudes: Tensor, k: int) -> Tensor:
    # the k-th value alone takes a quarter of the time of topk on 124 M numbers
    threshold = magnitudes.kthvalue(magnitudes.numel() - k + 1).values
    chosen = magnitudes > threshold
    missing = k - int(chosen.sum())
    chosen[(magnitudes == threshold).nonzero().squeeze(1)[:missing]] = True
    return chosen.nonzero().squeeze(1)
