"""Sums of weighted updates where these lie on a device: whole numbers in float64 there, the bits of `reproducible`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtorch.comm.sums.reproducible import Accumulator, SumScale
from fedtorch.comm.transport.windows import SUM_DTYPE
from fedtorch.core import devices
from fedtorch.core.kept_vectors import Lender


class DeviceAccumulator:
    """Adds weighted windows of vectors on a device, as `reproducible.Accumulator` does on the CPU.

    Products and roundings are those of float64, which are the same everywhere, and the sums are exact.
    """

    squares: float
    """Σ of the squares of the whole numbers in all sums that `result` has written; its last bits are open."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """size: the most elements of a window. dtype: of the vectors that are added, and of the result."""
        self._total = torch.empty(size, dtype=SUM_DTYPE, device=device)
        self._scale, self.squares = SumScale(0), 0.0
        self._host: Tensor | None = None

    def reset(self, scale: SumScale) -> None:
        """Start a new sum at `scale`."""
        self._scale = scale
        self._total.zero_()

    def add(self, grad: Tensor, weight: float) -> None:
        """Add weight · grad, on the device or the CPU; the same number of elements in every call of one sum."""
        numbers = grad.detach().to(self._total.device).to(SUM_DTYPE)
        self._total[: grad.numel()] += numbers.mul(self._scale.scaled(weight)).round_()  # half to even, as rint

    def partial(self, length: int) -> Tensor:
        """The first `length` elements of the sum, which share its memory: what a collective writes there counts."""
        return self._total[:length]

    def result(self, out: Tensor) -> Tensor:
        """Write the sum into `out` on the CPU, rounded once to its dtype; −0.0 as 0.0. This ends the sum."""
        total = self._total[: out.numel()]
        found = total.mul(self._scale.back()).to(out.dtype).add_(0.0)
        self.squares += float(torch.dot(total, total))
        if self._host is None or self._host.dtype != out.dtype:
            self._host = devices.page_locked(len(self._total), out.dtype)
        return out.copy_(self._host[: out.numel()].copy_(found))


def accumulator_for(
    place: torch.device, size: int, dtype: torch.dtype, kept: Lender
) -> Accumulator | DeviceAccumulator:
    """An accumulator of windows where this rank's updates lie, also if it has none in this sum.

    kept: lends the memory of one on the CPU.
    """
    return Accumulator(size, dtype, kept) if place == devices.CPU else DeviceAccumulator(size, dtype, place)
