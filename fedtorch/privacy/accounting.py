"""Adds releases up to ε, by the privacy loss distribution of a Poisson-sampled Gaussian mechanism (dp-accounting).

Two sets of clients are neighbours when one client's update is left out of every sum of one of them, while the number of
clients N and the denominator q·N stay what they are ("zero-out"). Its distribution is that of ADD_OR_REMOVE_ONE.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.settings import LEAST_NOISE

RELATION = "zero-out: with one client or without it, of a public number of clients"
INTERVAL = 1e-4
"""Between values of the privacy loss, dp-accounting's own default; it rounds so that ε is never too small."""
EXACT = 512
"""Numbers of releases that are composed one by one; of more the next multiple of a power of two, up to 0.4 % more, as
each takes some tenths of a second."""
DISTRIBUTIONS = 16
"""Distributions of one release that are kept: each round asks for those of all silos again. One takes some tenths of a
second to make and a megabyte or two to keep, at a noise multiplier of 0.1 six seconds and 23 MB."""
PRECISION = 1e-6
"""How far above the least noise multiplier the one found may be, as a share of it."""


@dataclass(frozen=True)
class Accountant:
    """ε after so many releases; every one is computed once in a process."""

    rate: float
    """q."""
    noise_multiplier: float
    """z."""
    delta: float
    """δ."""

    def epsilon(self, releases: int) -> float:
        """The least ε for which the releases are (ε, δ)-private; of more than EXACT a little more."""
        if not releases:
            return 0.0
        step = 1 << max(0, (releases - 1).bit_length() - EXACT.bit_length() + 1)
        return _epsilon(self, -(-releases // step) * step)

    def epsilon_of(self, spent: Mapping[int, int]) -> float:
        """ε of releases that may share a draw of the cohort. spent: as `shared` counts them."""
        if set(spent) <= {1}:
            return self.epsilon(spent.get(1, 0))
        return total_epsilon(parts_of(self.rate, self.noise_multiplier, spent), self.delta)

    def releases_within(self, epsilon: float, most: int) -> int:
        """How many releases stay within ε, `most` at most."""
        if self.epsilon(most) <= epsilon:
            return most
        low, high = 0, most  # the last that fits, the first that does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle)
        return low


def shared(draws: Iterable[object]) -> Counter[int]:
    """How many releases a draw of the cohort had -> how many draws had so many. draws: of each release its own."""
    return Counter(Counter(draws).values())


def parts_of(rate: float, noise_multiplier: float, spent: Mapping[int, int]) -> list[tuple[float, float, int]]:
    """As (q, z, how many): k releases on one draw are one release with the noise z / √k, and not k with z.

    Either the client is in all k sums or in none, so sampling hides it once: they are a Gaussian mechanism of
    sensitivity √k C under one Poisson sample.
    """
    return [(rate, noise_multiplier / math.sqrt(k), count) for k, count in sorted(spent.items())]


def added_up(parts: Iterable[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """(q, z, how many) with one entry for each kind, in the order of their first ones; none of which there are none."""
    alike: Counter[tuple[float, float]] = Counter()
    for rate, z, count in parts:
        alike[rate, z] += count
    return [(rate, z, count) for (rate, z), count in alike.items() if count]


def total_epsilon(parts: Sequence[tuple[float, float, int]], delta: float) -> float:
    """ε of releases of several kinds on the same clients, as (q, z, how many)."""
    composed = [_one_release(z, rate).self_compose(count) for rate, z, count in added_up(parts)]
    if not composed:
        return 0.0
    return float(reduce(lambda one, other: one.compose(other), composed).get_epsilon_for_delta(delta))


@lru_cache(maxsize=1 << 14)
def _epsilon(account: Accountant, releases: int) -> float:
    one = _one_release(account.noise_multiplier, account.rate)
    return float(one.self_compose(releases).get_epsilon_for_delta(account.delta))


@lru_cache(maxsize=DISTRIBUTIONS)
def _one_release(noise_multiplier: float, rate: float) -> Any:
    """The distribution of the privacy loss of one release."""
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=INTERVAL, sampling_prob=rate
    )


def least_noise(
    epsilon: float, rate: float, releases: int, delta: float, beside: Sequence[tuple[float, float, int]] = ()
) -> float:
    """The least z, and at most PRECISION of it more, with which so many releases are (ε, δ)-private.

    beside: further releases on the same, as (q, z, how many), which are on the account too. None below LEAST_NOISE, of
    which the account takes minutes.

    Raises:
        ConfigError: none up to 1000 is.
    """

    @cache
    def excess(z: float) -> float:
        """Above 0 where it is too little."""
        alone = Accountant(rate, z, delta)
        found = total_epsilon([(rate, z, releases), *beside], delta) if beside else alone.epsilon(releases)
        return math.log(max(found, 1e-300) / epsilon)

    high, low = 1.0, 1.0
    while (above := excess(high)) > 0:
        low, high = high, 2 * high
        if high > 1000:
            raise ConfigError(
                f"privacy.epsilon is {epsilon}, for which no privacy.noise_multiplier up to 1000 is enough"
            )
    while low == high or (below := excess(low)) <= 0:
        if high <= LEAST_NOISE:
            return high
        low, high, above = max(low / 2, LEAST_NOISE), low, above if low == high else below
    last = 0  # the Illinois rule: a secant through both ends; one that stays twice counts half
    while high - low > PRECISION * low:
        place = low * (high / low) ** (below / (below - above))
        place = min(max(place, low * (1 + PRECISION / 3)), high * (1 - PRECISION / 3))
        found = excess(place)
        if found > 0:
            low, below, above, last = place, found, above / 2 if last > 0 else above, 1
        else:
            high, above, below, last = place, found, below / 2 if last < 0 else below, -1
    return high
