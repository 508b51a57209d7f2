"""Public numbers that a silo's promise rests on, and the ε that they come to. Nothing here is counted from rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.accounting import INTERVAL, least_noise, total_epsilon
from fedtorch.privacy.clip import exponent_of

RELATION = "add or remove one unit of one silo"
Part = tuple[float, float, int]
"""(q, z, steps) of some noised steps."""


@dataclass(frozen=True)
class SiloTerms:
    """Terms of one silo in a run."""

    silo: str
    """its name: that of the client"""
    units: int
    """as declared"""
    batch: int
    """units of a batch on average"""
    steps: int
    """of a round in which it takes part"""
    rounds: int
    """of the run"""
    noise_multiplier: float
    """z"""
    clip: float
    """C"""
    delta: float
    """δ"""
    max_epsilon: float | None
    """by all that was ever released of its rows; None: no limit"""
    most_steps: int | None = None
    """of the run; None: no limit"""
    pool: int | None = None
    """where noise is shared: units of all silos together, whose sum is one; None: each silo's sums are its own"""
    honest: int = 1
    """where noise is shared: so many shares of it are surely in a sum that is opened"""

    @property
    def rate(self) -> float:
        """q: the probability that a unit is in a step's batch."""
        return self.batch / self.units

    @property
    def exponent(self) -> int:
        """e: numbers are multiples of 2^-e, by the most units that there may be."""
        return exponent_of(self.clip, 2 * (self.pool or self.units))

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise that this silo adds to one number of a sum, in steps of 2^-e."""
        whole = self.noise_multiplier * math.ldexp(self.clip, self.exponent)
        return whole / math.sqrt(self.honest)

    def part(self, steps: int) -> Part:
        """So many steps on these terms, for the account."""
        return self.rate, self.noise_multiplier, steps

    def steps_in(self, rounds: int) -> int:
        """Steps of so many rounds, each trained once."""
        most = rounds * self.steps
        return most if self.most_steps is None else min(most, self.most_steps)

    def epsilon(self, rounds: int) -> float:
        """ε of so many rounds, each trained once."""
        return epsilon_of([self.part(self.steps_in(rounds))], self.delta)

    def rounds_within(self, limit: float) -> int:
        """How many of the run's rounds stay within ε, with nothing released before."""
        low, high = -1, self.rounds + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= limit else (low, middle)
        return low

    def record(self) -> dict[str, Any]:
        """For results.json."""
        return {
            "units": self.units,
            "rate": self.rate,
            "steps_per_round": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
        }


def noise_for(epsilon: float, *, silo: str, units: int, batch: int, steps: int, delta: float) -> float:
    """The least noise multiplier with which a silo's steps stay within ε.

    Raises:
        ConfigError: none up to 1000 does.
    """
    try:
        return least_noise(epsilon, batch / units, max(1, steps), delta)
    except ConfigError as error:
        raise ConfigError(f"silo {silo}: {error}") from None


def epsilon_of(parts: Iterable[Part], delta: float) -> float:
    """ε of steps of several kinds on the same units: one silo's, or those of all silos that have a person's rows."""
    alike: Counter[tuple[float, float]] = Counter()
    for rate, z, steps in parts:
        alike[rate, z] += steps
    return _epsilon(tuple((rate, z, steps) for (rate, z), steps in sorted(alike.items()) if steps), delta)


@lru_cache(maxsize=1 << 12)
def _epsilon(parts: tuple[Part, ...], delta: float) -> float:
    return total_epsilon(parts, delta)


def epsilon_of_rows(
    rows: int, *, rate: float, noise_multiplier: float, steps: int, delta: float, interval: float = INTERVAL
) -> float:
    """ε of a person with so many rows where the unit is a row: how many of them are in a batch is binomial.

    A pair that dominates: N(0, z²) beside the mixture of N(j, z²), j ~ Bin(rows, q), both ways round. interval: between
    values of the privacy loss, of which a larger one is faster and never tells too little.
    """
    from dp_accounting.pld import privacy_loss_distribution
    from scipy.stats import binom

    shares = [float(binom.pmf(j, rows, rate)) for j in range(rows + 1)]
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise_multiplier,
        sensitivities=[float(j) for j in range(rows + 1)],
        sampling_probs=shares,
        value_discretization_interval=interval,
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def together(silos: Sequence[SiloTerms], rounds: int) -> float:
    """ε of a person whose rows are in several silos, at the least of their δ: their losses are composed."""
    return epsilon_of([terms.part(terms.steps_in(rounds)) for terms in silos], min(terms.delta for terms in silos))
