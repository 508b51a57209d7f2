"""An update as whole numbers of a bounded length: what one client can change in a sum, at most, and exactly."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from fedtorch.core.errors import UpdateError
from fedtorch.core.norms import CHUNK, norm_and_max

BITS = 32
"""A clip C is at most 2^32 steps long: of 60 M numbers of equal size each still has 19 bits, far below any noise."""
ROOM = 51
"""N clients' largest whole numbers together stay below 2^51, and so does the noise: their sum is exact in float64."""
_OF_FP32 = np.uint64(2**64 - 2**29)
"""The bits of a float64 that a float32 of the same size has too: sign, exponent and 23 of 52 digits."""
MARGIN = 2.0**-24
"""What is clipped is made shorter by this share: more than the norm (some 1e-13) and the products can be off."""


def exponent_of(clip: float, num_clients: int) -> int:
    """e, so that numbers are multiples of 2^-e: C·2^e is at most 2^32, and N·C·2^e at most 2^51. Of public numbers."""
    bits = min(BITS, ROOM - math.ceil(math.log2(max(1, num_clients))))
    mantissa, power = math.frexp(clip)  # clip = mantissa · 2^power, mantissa in [0.5, 1)
    return bits - (power - 1 if mantissa == 0.5 else power)


def bound(update: Tensor, clip: float, exponent: int) -> float:
    """Clip `update` in place to multiples of 2^-exponent, of a norm of at most `clip`; returns the norm that it had.

    u = Δ·min(1, C/‖Δ‖); k = trunc(u·2^e), towards zero, so that ‖k‖ ≤ C·2^e holds exactly (rounding to the nearest
    would add √d/2). In fp32 k keeps its upper 24 bits, cut off towards zero too.

    update: flat, on the CPU, fp32 or float64.

    Raises:
        UpdateError: it is not finite.
    """
    norm, _ = norm_and_max(update)
    if not math.isfinite(norm):
        raise UpdateError("the update is not finite")
    share = 1.0 if norm <= clip * (1 - MARGIN) else clip / norm * (1 - MARGIN)
    factor, back = np.float64(math.ldexp(share, exponent)), np.float64(math.ldexp(1.0, -exponent))
    values = update.detach().numpy()
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        exact = np.multiply(part, factor, dtype=np.float64)
        np.trunc(exact, out=exact)
        np.multiply(exact, back, out=exact)
        if part.dtype == np.float32:  # without the digits that it lacks, so that nothing is rounded up
            np.bitwise_and(exact.view(np.uint64), _OF_FP32, out=exact.view(np.uint64))
        np.add(exact, 0.0, out=part, casting="same_kind")  # zero is never -0.0
    return norm
