"""Addition of a multiple with one rounding, the same bits on processors with a fused product and sum and without."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_CHUNK = 1 << 16  # numbers that are looked at together, so that the float64 in between stays in the cache


@cache
def _is_fused() -> bool:
    """Does torch's own loop round once? It does with AVX2 and AVX512, and not in its plain loops."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def add_multiple(total: Tensor, values: Tensor, factor: float) -> None:
    """total += factor · values, in place, rounded once.

    Both flat and of one dtype on the CPU. The bits do not depend on the processor for float32; other dtypes are left
    to torch. factor: is rounded to float32 first, as torch does.
    """
    if _is_fused() or total.dtype != torch.float32:
        total.add_(values, alpha=factor)
        return
    single = float(torch.tensor(factor, dtype=torch.float32))
    for part, other in zip(total.split(_CHUNK), values.split(_CHUNK), strict=True):
        part.copy_(_rounded_to_odd(part.double(), other.double().mul_(single)))


def _rounded_to_odd(first: Tensor, second: Tensor) -> Tensor:
    """The sum in float64, with an odd last bit wherever it is not exact: rounded once more it is as if never rounded.

    first: of float32; second: an exact product of two of these (48 bits). Boldo and Melquiond 2008, Emulation of FMA
    and correctly rounded sums: proved algorithms using rounding to odd.
    """
    total = first + second
    back = total - first
    error = (first - (total - back)) + (second - back)
    bits = total.view(torch.int64)
    is_even = (bits & 1 == 0) & (error != 0) & total.isfinite()
    # away from zero, the bits of a number of either sign are one more
    bits.add_(torch.where((error > 0) == (total > 0), 1, -1).mul_(is_even))
    return total
