"""Norms of vectors that lie on a device, added there in numpy's order: the bits of `norms` on the CPU.

numpy adds in pairs: a run of more than 128 numbers is cut in two at a multiple of 8, and a shorter one is added into
eight sums that take turns. Each addition here is one of whole tensors in float64, which rounds as the CPU's does.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_RUN = 128  # numbers of the longest run that is not cut
_LANES = 8
_AT_ONCE = 1 << 22  # numbers that are widened together, 32 MB


def squares_and_max(vector: Tensor, chunk: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Measure every `chunk` numbers of a flat vector, as `kernels.squares_and_max` does on the CPU, to the same bits.

    chunk: `_RUN` times a power of two. A few numbers for each chunk come to the host.
    """
    whole = len(vector) // chunk * chunk
    squares, largest = [], []
    for start in range(0, whole, _AT_ONCE // chunk * chunk):
        part = vector[start : min(start + _AT_ONCE // chunk * chunk, whole)]
        sums = _in_lanes(part.view(-1, chunk // _RUN, _RUN // _LANES, _LANES))
        while sums.shape[1] > 1:
            sums = sums[:, 0::2] + sums[:, 1::2]
        squares.append(sums[:, 0])
        largest.append(part.view(-1, chunk).abs().amax(1))
    found = [torch.cat(each).double().cpu().numpy() if each else np.zeros(0) for each in (squares, largest)]
    if whole < len(vector):
        rest = vector[whole:]
        found[0] = np.append(found[0], _sum_of_rest(rest))
        found[1] = np.append(found[1], float(rest.abs().amax()))
    return found[0], found[1]


def _in_lanes(numbers: Tensor) -> Tensor:
    """Sum of the squares of every run: from shape (..., steps, lanes) to (...), float64."""
    wide = numbers.double()
    lanes = wide[..., 0, :] * wide[..., 0, :]
    for step in range(1, wide.shape[-2]):
        lanes = lanes + wide[..., step, :] * wide[..., step, :]
    while lanes.shape[-1] > 1:
        lanes = lanes[..., 0::2] + lanes[..., 1::2]
    return lanes[..., 0]


def _sum_of_rest(rest: Tensor) -> float:
    """Sum of the squares of a vector of any length; one number for each of its runs comes to the host."""
    runs = torch.tensor(_runs(len(rest)), device=rest.device)  # one upload and some operations, however many there are
    starts, stops = runs[:, :1], runs[:, 1:]
    places = starts + torch.arange(_RUN, device=rest.device)
    places = torch.where(places < starts + (stops - starts) // _LANES * _LANES, places, len(rest))
    padded = torch.cat([rest, rest.new_zeros(1)])[places]  # a square is no −0.0, to which adding 0.0 would change a bit
    sums = _in_lanes(padded.view(len(runs), _RUN // _LANES, _LANES)).tolist()
    left = len(rest) % _LANES  # at the end of the last run, as the others are cut at multiples
    for value in rest[len(rest) - left :].double().tolist():
        sums[-1] += value * value
    place = iter(sums)

    def total(length: int) -> float:
        return next(place) if length <= _RUN else total(_cut(length)) + total(length - _cut(length))

    return total(len(rest))


def _cut(length: int) -> int:
    return length // 2 // _LANES * _LANES


@lru_cache(maxsize=64)
def _runs(length: int) -> tuple[tuple[int, int], ...]:
    """(start, stop) of the runs into which numpy cuts so many numbers."""
    if length <= _RUN:
        return ((0, length),)
    cut = _cut(length)
    return (*_runs(cut), *((start + cut, stop + cut) for start, stop in _runs(length - cut)))
