"""A clip that follows a quantile of the updates' norms (Andrew et al. 2019, arXiv 1905.03871)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.settings import AdaptiveClip
from fedtorch.privacy.stream import Stream, add_noise

STEPS = 2.0**32  # a count of clients is a multiple of 2^-32 when noise is added to it, for the reason in `add_noise`
SMALLEST, LARGEST = 1e-12, 1e12


def bit_noise(rule: AdaptiveClip, expected: float) -> float:
    """sigma_b, of the noise on Σ (b_i − ½). expected: qN, the clients that take part on average."""
    return expected / 20 if rule.bit_noise == "auto" else float(rule.bit_noise)


def update_noise(noise_multiplier: float, sigma: float) -> float:
    """z_Δ = (z^-2 − (2 sigma_b)^-2)^-½: with it the noisy sum and the noisy count together are accounted with z.

    Raises:
        ConfigError: the count alone would use up more than z allows.
    """
    left = noise_multiplier**-2 - (2 * sigma) ** -2
    if left <= 0:
        raise ConfigError(
            f"the noise on the number of unclipped clients, {sigma:g} (privacy.clip.adaptive.bit_noise), is too little "
            f"for privacy.noise_multiplier {noise_multiplier:g}; set it above {noise_multiplier / 2:g}"
        )
    return left**-0.5


def moved(clip: float, rule: AdaptiveClip, unclipped: float, expected: float) -> float:
    """C·exp(−η (b̄ − γ)), b̄ = ½ + unclipped / expected.

    unclipped: Σ (b_i − ½) with noise, b_i = 1 where an update was *not* longer than C. expected: qN.
    """
    share = 0.5 + unclipped / expected
    return min(max(clip * math.exp(-rule.rate * (share - rule.quantile)), SMALLEST), LARGEST)


def noised_count(
    halves: int, sigma: float, stream: Stream, add: Callable[[npt.NDArray[np.float64], float, Stream], None] = add_noise
) -> float:
    """halves / 2 with noise, which `add` draws. halves: Σ (2 b_i − 1), a whole number."""
    total = np.array([halves * STEPS / 2])
    add(total, sigma * STEPS, stream)
    return float(total[0] / STEPS)
