"""The k numbers of largest magnitude in a long vector: exactly k of them, the lowest index first at a tie."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.core.seeds import generator_for
from fedtorch.core.sparse_kernels import reaching

MAX_SIZE = 2**31 - 1  # what an int32 index reaches
# A threshold from so many numbers leaves a few per cent too many candidates. Larger samples only cost time.
SAMPLE = 200_000
# 10 % more candidates than needed: with 2,000 of the sample above the threshold that is 4.5 standard deviations.
_SLACK = 1.1
_NAN = "a vector with NaN has no largest entries"
_CHUNK = 1 << 16  # entries looked at together, so that scratch stays in the cache

Floats = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.int32]


def count_of(ratio: float, size: int) -> int:
    """k = max(1, ceil(ratio · size)); 0 for an empty tensor. The ratio is taken as the fraction it stands for.

    0.07 · 100 is 7.000000000000001 in binary, but k is 7; likewise 0.0833333333 is 1/12.
    """
    if size == 0:
        return 0
    return min(size, max(1, math.ceil(Fraction(ratio).limit_denominator(1_000_000) * size)))


def largest(flat: Tensor, k: int, *, sampled: bool = False) -> tuple[Tensor, Tensor]:
    """The k largest |entries|: their indices, int32, shape (k,), ascending, and the entries themselves, shape (k,).

    flat: shape (n,), finite, n < 2^31. 0 <= k <= n. sampled: a threshold comes from a sample and only what passes it is
    looked at closely; the result is the same, the time a fraction (DGC's sampling, which sends *about* k).

    Raises:
        ValueError: k or n is out of range, or the vector has NaN (infinities are the largest entries).
    """
    size = flat.numel()
    if size > MAX_SIZE:
        raise ValueError(f"a vector of {size} numbers needs 64-bit indices; the limit is {MAX_SIZE}")
    if not 0 <= k <= size:
        raise ValueError(f"{k} entries of a vector of {size} were asked for; expected 0 to {size}")
    if k in (0, size):
        return torch.arange(k, dtype=torch.int32, device=flat.device), flat[:k].clone()
    # numpy: first touches of new memory and torch's kthvalue and nonzero took five times as long (*measured*)
    entries = flat.detach().cpu().numpy()
    if sampled and size > 4 * SAMPLE:
        if (found := reaching(entries, _threshold(entries, k), _CHUNK)) is None:
            raise ValueError(_NAN)
        indices, passed = found
        if len(indices) >= k:
            chosen = _exact(np.abs(passed), k)
            return _on_device(flat, indices[chosen], passed[chosen])
    indices = np.flatnonzero(_exact(np.abs(entries), k)).astype(np.int32)
    return _on_device(flat, indices, entries[indices])


def _on_device(flat: Tensor, indices: Indices, entries: Floats) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(indices).to(flat.device), torch.from_numpy(entries).to(flat.device)


def _threshold(entries: Floats, k: int) -> float:
    """A magnitude that a little more than k entries reach, from a sample that depends on the length alone."""
    size = len(entries)
    picked = torch.randint(size, (SAMPLE,), generator=generator_for(0, "top-k sample", size)).numpy()
    place = max(1, int(SAMPLE * (1 - _SLACK * k / size))) - 1
    return float(np.partition(np.abs(entries[picked]), place)[place])


def _exact(magnitudes: Floats, k: int) -> npt.NDArray[np.bool_]:
    """Which are the k largest, the first ones at a tie."""
    _refuse_nan(magnitudes)
    place = len(magnitudes) - k
    threshold = np.partition(magnitudes, place)[place]
    chosen = magnitudes > threshold
    missing = k - np.count_nonzero(chosen)
    chosen[np.flatnonzero(magnitudes == threshold)[:missing]] = True
    return chosen


def _refuse_nan(magnitudes: Floats) -> None:
    if np.isnan(magnitudes.max()):
        raise ValueError(_NAN)
