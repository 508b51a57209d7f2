"""Public numbers that a silo's promise rests on, and the ε that they come to. Nothing here is counted from rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.accounting import INTERVAL, added_up, least_noise, total_epsilon
from fedtorch.privacy.clip import exponent_of

RELATION = "add or remove one unit of one silo"
Part = tuple[float, float, int]
"""(q, z, steps) of some noised steps."""


@dataclass(frozen=True)
class HeldOut:
    """Terms of the noised counts over a silo's held-out units, and when a run makes them."""

    noise_multiplier: float
    """z of a count, whose sensitivity is 1"""
    units: Mapping[str, int]
    """split -> units, as declared"""
    metrics: tuple[str, ...]
    """names of the numbers that are counted; each is a count of every evaluation"""
    every: int
    """rounds between evaluations; 0: none during training"""
    on_start: bool
    """is there one before the first round?"""
    split: str
    """evaluated during training"""
    final_split: str
    """evaluated at the end"""
    apart: bool
    """is a unit of a split in no other split and in no training of the run? So it is with rows, not with persons"""

    def part(self, counts: int) -> Part:
        """So many counts, for the account: each is of all units."""
        return 1.0, self.noise_multiplier, counts

    def counts_in(self, rounds: int, last: int) -> dict[str, int]:
        """Split -> counts in so many rounds of a run of `last`, those at its end with the last round."""
        is_over = rounds >= last
        during = int(self.on_start)
        if self.every:
            during += rounds // self.every + (is_over and rounds % self.every > 0)
        found = Counter({self.split: during})
        found[self.final_split] += is_over
        return {split: count * len(self.metrics) for split, count in found.items() if count and split in self.units}

    def record(self) -> dict[str, Any]:
        """For results.json."""
        return {
            "units": dict(self.units),
            "metrics": list(self.metrics),
            "noise_multiplier": self.noise_multiplier,
            "apart": self.apart,
        }


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
    held_out: HeldOut | None = field(default=None, repr=False)  # of no training, whose digests have this text in them
    """of scores on rows of its own; None: it has none"""

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

    def counts_in(self, rounds: int) -> dict[str, int]:
        """Split -> noised counts of held-out units in so many rounds."""
        return {} if self.held_out is None else self.held_out.counts_in(rounds, self.rounds)

    def parts(self, steps: int, counts: Mapping[str, int]) -> list[Part]:
        """Steps, and counts by split, for the account of a unit that may be in all of them."""
        held_out = self.held_out
        return [self.part(steps), *([] if held_out is None else map(held_out.part, counts.values()))]

    def promised(self, steps: int, counts: Mapping[str, int]) -> float:
        """ε of one run's steps and counts: where a row is trained on or in one split, the largest of them."""
        if self.held_out is None or not self.held_out.apart:
            return epsilon_of(self.parts(steps, counts), self.delta)
        scored = epsilon_of_counts(self.held_out.noise_multiplier, counts, self.delta, apart=True)
        return max(epsilon_of([self.part(steps)], self.delta), scored)

    def epsilon(self, rounds: int) -> float:
        """ε of so many rounds, each trained once, with the evaluations among them."""
        return self.promised(self.steps_in(rounds), self.counts_in(rounds))

    def all_parts(self, rounds: int) -> list[Part]:
        """All releases of so many rounds, as a ledger adds them up, in which rows may have been dealt anew."""
        return self.parts(self.steps_in(rounds), self.counts_in(rounds))

    def rounds_within(self, limit: float) -> int:
        """How many of the run's rounds stay within ε by the silo's ledger, with nothing released before."""
        low, high = -1, self.rounds + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if epsilon_of(self.all_parts(middle), self.delta) <= limit else (low, middle)
        return low

    def record(self) -> dict[str, Any]:
        """For results.json."""
        return {
            "units": self.units,
            "rate": self.rate,
            "steps_per_round": self.steps,
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            **({} if self.held_out is None else {"held_out": self.held_out.record()}),
        }


def noise_for(
    epsilon: float, *, silo: str, units: int, batch: int, steps: int, delta: float, beside: Sequence[Part] = ()
) -> float:
    """The least noise multiplier with which a silo's steps, and what else is on the same units, stay within ε.

    Raises:
        ConfigError: none up to 1000 does.
    """
    try:
        return least_noise(epsilon, batch / units, max(1, steps), delta, beside)
    except ConfigError as error:
        raise ConfigError(f"silo {silo}: {error}") from None


def epsilon_of(parts: Iterable[Part], delta: float) -> float:
    """ε of steps of several kinds on the same units: one silo's, or those of all silos that have a person's rows."""
    return _epsilon(tuple(sorted(added_up(parts))), delta)


def epsilon_of_counts(z: float, counts: Mapping[str, int], delta: float, *, apart: bool) -> float:
    """ε of noised counts by split; apart: a unit is in one split alone, so the split with the most counts decides."""
    count = max(counts.values(), default=0) if apart else sum(counts.values())
    return epsilon_of([(1.0, z, count)], delta)


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
    parts = [part for terms in silos for part in terms.all_parts(rounds)]
    return epsilon_of(parts, min(terms.delta for terms in silos))
