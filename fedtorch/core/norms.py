"""The norm and the largest element of a flat vector: right at any length, and the same bits on any number of threads.

torch adds the squares of an fp32 vector in fp32: 0.5 % too few at 60 M numbers (*measured*, torch 2.13), and in another
order with another number of threads. numpy adds in pairs, and on one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.core import device_norms, kernels
from fedtorch.core.kernels import squares_and_max

_Chunks = tuple[npt.NDArray[np.float64], npt.NDArray[Any]]

CHUNK = 1 << 16  # elements looked at together, which stay in the cache
_SAFE = 1e140  # squares of numbers between its inverse and itself, and their sums, are in the range of float64


def norm_and_max(vector: Tensor) -> tuple[float, float]:
    """(L2 norm, largest absolute value) of a flat vector of fp32 or float64, in one pass; (0, 0) if it is empty.

    Squares are taken and added in float64. The largest value is exact. Both are finite exactly when all elements are
    (and the norm is below 1.8e308). A vector on a device is measured there, to the same bits.
    """
    if vector.device.type != "cpu":
        return _on_device(vector.detach())
    values = vector.detach().numpy()
    return _of_chunks(lambda: squares_and_max(values, CHUNK), values)


def difference(start: Tensor, vector: Tensor, out: Tensor) -> tuple[float, float]:
    """`norm_and_max` of out = start − vector, in the same pass: the same bits. `out` may be `vector`; one dtype.

    All three lie on the CPU, or on one device.
    """
    if out.device.type != "cpu":
        return norm_and_max(torch.sub(start.detach(), vector.detach(), out=out.detach()))
    values = out.detach().numpy()
    first, second = (each.detach().numpy() for each in (start, vector))
    return _of_chunks(lambda: kernels.difference(first, second, values, CHUNK), values)


def copied(vector: Tensor, out: Tensor) -> tuple[float, float]:
    """`norm_and_max` of `out`, into which `vector` is copied in the same pass; one dtype and length.

    Each number is read once: what is measured is what `out` has, also where another process changes `vector` meanwhile.
    """
    values, read = out.detach().numpy(), vector.detach().numpy()
    return _of_chunks(lambda: kernels.difference(None, read, values, CHUNK), values)


def is_finite(vector: Tensor) -> bool:
    """Is every element? One pass without a mask, unless something is wrong or the sum is beyond the dtype."""
    return math.isfinite(vector.sum().item()) or bool(vector.isfinite().all())


def _on_device(vector: Tensor) -> tuple[float, float]:
    """`norm_and_max` where the vector lies; on the CPU where squares would leave the range of float64."""
    squares, largest = _squares_and_max(lambda: device_norms.squares_and_max(vector, CHUNK))
    if 0 < largest < math.inf and not 1 / _SAFE < largest < _SAFE:
        return norm_and_max(vector.cpu())
    return math.sqrt(squares), largest


def _of_chunks(measure: Callable[[], _Chunks], values: npt.NDArray[Any]) -> tuple[float, float]:
    """From what `measure` says of the chunks of `values`, which it has filled by then."""
    squares, largest = _squares_and_max(measure)
    if 0 < largest < math.inf and not 1 / _SAFE < largest < _SAFE:  # only float64 reaches that far
        power = math.frexp(largest)[1]
        scaled = np.ldexp(values, -power)
        squares, _ = _squares_and_max(lambda: squares_and_max(scaled, CHUNK))
        with np.errstate(over="ignore"):  # a norm may be beyond float64 though no element is
            return float(np.ldexp(math.sqrt(squares), power)), largest
    return math.sqrt(squares), largest


def _squares_and_max(measure: Callable[[], _Chunks]) -> tuple[float, float]:
    """(sum of squares, largest absolute value)."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares, largest = measure()
        return float(np.add.reduce(squares)), float(np.maximum.reduce(largest, initial=0.0)) + 0.0  # of zeros, 0.0
