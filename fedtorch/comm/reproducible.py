"""The weighted sum of updates as an integer sum: the same bits for any number of ranks and any packing of clients.

Floating-point partial sums depend on who adds what first (*measured*: half of all entries differ between 1, 2 and
4 ranks). So every p_i Δ_i is rounded to a multiple of one common power of two and the multiples are added as whole
numbers below 2^53 in float64: exactly, so in any order. The multiple is at most 2^-51 of the largest possible sum
(Σ |p_i| max |Δ_i|), and every client adds an error of at most half of it: far below fp32, whose rounding of that sum
is 2^-24. An element of less than 2^-27 of it keeps less than its own fp32 digits; but Δ_i is a difference of two fp32
weights and rarely has them. (int64 would keep ten bits more and takes twice as long: there are no vector instructions
for it.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.comm.digests import Passing
from fedtorch.core.kept_vectors import KeptVectors, Lender
from fedtorch.core.kernels import add_rounded, add_sum, write_scaled

# Vectors are summed window by window, so that the sum stays in the cache and no rank ever holds one of full length:
# 4 MB of fp32 to send, 8 MB of float64 to reduce. Smaller windows cost more in messages than they save.
WINDOW = 1 << 20
SUM_DTYPE = torch.float64
CHUNK = 1 << 17  # elements of scratch; 2^15 was 20 % slower


def windows(size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of the consecutive windows of a vector of `size` elements."""
    for start in range(0, size, WINDOW):
        yield start, min(start + WINDOW, size)


@dataclass(frozen=True)
class SumScale:
    """The common scale of a sum."""

    exponent: int
    """A product p_i Δ_i enters the sum as round(p_i Δ_i · 2^exponent)."""

    @classmethod
    def of(cls, weights: Sequence[float], max_abs: Sequence[float]) -> SumScale:
        """The finest scale at which Σ |p_i Δ_i| < 2^53 for sure, rounding included.

        weights: p_i, any finite numbers. max_abs: largest |element| of each Δ_i, in the same order.
        The scale is coarser than necessary only where 2^exponent itself would leave the range of float64
        (updates whose elements are all below about 1e-285), and 2^0 if every product is zero.

        Raises:
            ValueError: a weight or maximum is not finite, or negative for a maximum, or their products overflow.
        """
        for name, values in (("weight", weights), ("max_abs", max_abs)):
            for place, value in enumerate(values):
                if not math.isfinite(value) or (name == "max_abs" and value < 0):
                    raise ValueError(f"{name} {place} of a weighted sum is {value}; expected a finite number")
        products = [abs(p) * m for p, m in zip(weights, max_abs, strict=True)]
        if max(products, default=0.0) > 1e299:
            raise ValueError(f"a weighted sum would reach {max(products)}; expected at most 1e299")
        # Each product and the sum are within 2^-53 of the truth, so a little more is a bound for sure.
        bound = math.fsum(products) * (1 + 2**-40)
        power = math.frexp(bound)[1]  # bound < 2^power
        if bound == 0:
            return cls(0)
        largest_weight = math.frexp(max(map(abs, weights)))[1]
        return cls(min(52 - power, 1000 - max(0, largest_weight)))

    def scaled(self, weight: float) -> float:
        """weight · 2^exponent, exact (unless subnormal)."""
        return math.ldexp(weight, self.exponent)


class Accumulator:
    """Adds weighted vectors; allocates nothing after construction.

    Sums of several accumulators with the same scale may be added to one another, by a collective for instance;
    `result` then gives the same bits as one. *Measured:* 0.6 ns per element and client on one thread, 1.4 where
    `core.kernels` runs in numpy.
    """

    size: int
    """The most elements of a vector."""
    dtype: torch.dtype
    """Of the vectors that are added."""
    total: Tensor
    """The sum of whole numbers, float64, shape (size,), on the CPU."""
    squares: float
    """Σ of the squares of the whole numbers in all sums that `result` has written; its last bits are open."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32, kept: Lender | None = None) -> None:
        """kept: lends the memory of `total`, None: it is new."""
        self.size, self.dtype = size, dtype
        self.total = (kept or KeptVectors()).lend(size, SUM_DTYPE)  # a fresh sum writes it before it is read
        self._whole = np.empty(max(1, min(size, CHUNK)))
        self._scale = SumScale(0)
        self._is_fresh = True
        self.squares = 0.0

    def reset(self, scale: SumScale) -> None:
        """Start a new sum at `scale`."""
        self._scale = scale
        self._is_fresh = True

    @torch.no_grad()
    def add(self, grad: Tensor, weight: float, *, came: Passing | None = None, goes: Passing | None = None) -> None:
        """Add weight · grad; grad has at most `size` elements, the same number in every call of one sum.

        came: is shown `grad`, and the whole numbers that are added. goes: is shown the sum as it then is.
        """
        if grad.dtype != self.dtype or grad.dim() != 1 or grad.numel() > self.size:
            raise ValueError(
                f"an accumulator of {self.size} {self.dtype} was given {tuple(grad.shape)} {grad.dtype}; "
                f"expected a vector of its own dtype that is no longer"
            )
        factor = np.float64(self._scale.scaled(weight))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite shows in the squares
            for part, total in self._pieces(grad):
                if came is not None:
                    came.read(part)
                fresh, measure = self._is_fresh, came is not None
                squares = add_rounded(part, total, factor, self._whole, fresh=fresh, measure=measure)
                if came is not None:
                    came.squares += squares
                if goes is not None:
                    goes.read(total)
        self._is_fresh = False

    def add_sum(self, sums: Tensor, came: Passing | None = None) -> None:
        """Add the beginning of another accumulator's `total`, of the same scale. came: is shown it."""
        with np.errstate(over="ignore", invalid="ignore"):
            for part, total in self._pieces(sums):
                if came is not None:
                    came.read(part)
                squares = add_sum(part, total, fresh=self._is_fresh, measure=came is not None)
                if came is not None:
                    came.squares += squares
        self._is_fresh = False

    def _pieces(self, vector: Tensor) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.float64]]]:
        """The vector in pieces that stay in the cache, each with its place in `total`."""
        values, total = vector.numpy(), self.total.numpy()
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            yield part, total[start : start + len(part)]

    def partial(self, length: int) -> Tensor:
        """The first `length` elements of `total`, zero if nothing was added; shares memory with `total`.

        What a collective then writes there is part of the sum.
        """
        total = self.total[:length]
        if self._is_fresh:
            total.zero_()
            self._is_fresh = False
        return total

    @torch.no_grad()
    def result(self, out: Tensor) -> Tensor:
        """Write the sum into `out`, rounded once to its dtype; `out` is at most `size` long. Zero is never −0.0."""
        self.partial(out.numel())
        factor = np.float64(math.ldexp(1.0, -self._scale.exponent))
        with np.errstate(over="ignore", invalid="ignore"):  # beyond the range of `out` is infinity, as in torch
            for part, total in self._pieces(out):
                # Whether whole numbers add up to 0.0 or −0.0 depends on who began with 0.0; what is written is 0.0 for
                # both.
                self.squares += write_scaled(total, part, factor)
        return out
