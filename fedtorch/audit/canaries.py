"""Canary clients: how large epsilon is at least, from one run of a mechanism, without training (2302.03098)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtorch.audit.gaussians import epsilon_between
from fedtorch.core.seeds import seed_for
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import WEIGHTS
from fedtorch.core.update import Report
from fedtorch.privacy.client_level import ClientLevel, Terms
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.settings import PrivacyConfig

Mechanism = Callable[[Tensor], Tensor]
"""From the sum of all clipped updates, float64, shape (d,), to what is released."""
Outgoing = Callable[[Tensor], object]
"""Changes a client's update, float64, shape (d,), in place."""


@dataclass(frozen=True)
class CanaryEstimate:
    """What the canaries of one release say."""

    epsilon: float
    """estimated at `delta`"""
    delta: float
    """given"""
    mean: float
    """of the cosines between canaries and release"""
    deviation: float
    """of the cosines; 1/√d where there is no canary"""
    canaries: int
    """k"""
    numbers: int
    """d"""
    cosines: tuple[float, ...]
    """of each canary"""


def estimate(
    mechanism: Mechanism,
    *,
    numbers: int,
    clip: float,
    delta: float,
    canaries: int = 500,
    seed: int = 0,
    outgoing: Outgoing | None = None,
) -> CanaryEstimate:
    """Let `canaries` clients of norm `clip` join in random directions, and look for each in what is released.

    Andrew et al. 2024 (One-shot empirical privacy estimation), algorithm 1: a direction that did not join has a cosine
    of N(0, 1/d) with the release; to the cosines of those that did a normal distribution is fitted; epsilon is that
    between the two. An estimate with an error of its own (about ± 0.2 at epsilon 1 with 500 canaries and 10^5 numbers),
    no upper bound. Directions are drawn twice from `seed`, so that memory is that of one. outgoing: what a worker does
    to a canary's update of norm `clip` before it is added to the others.

    Raises:
        ValueError: fewer than two canaries, or fewer numbers than canaries.
    """
    if canaries < 2 or numbers < canaries:
        raise ValueError(
            f"{canaries} canaries in {numbers} numbers: give at least two, and no more canaries than numbers, or they "
            "hide each other"
        )
    total = torch.zeros(numbers, dtype=torch.float64)
    for direction in directions(canaries, numbers, seed):
        update = direction.mul_(clip)
        if outgoing is not None:
            outgoing(update)
        total.add_(update)
    released = mechanism(total).double()
    length = float(released.norm())
    found = [
        float(direction @ released) / length if length else 0.0 for direction in directions(canaries, numbers, seed)
    ]
    mean = math.fsum(found) / canaries
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in found) / (canaries - 1))
    null = 1 / math.sqrt(numbers)
    epsilon = epsilon_between(mean, max(deviation, 1e-12), null, delta)
    return CanaryEstimate(epsilon, delta, mean, deviation, canaries, numbers, tuple(found))


def directions(count: int, numbers: int, seed: int) -> Iterator[Tensor]:
    """Random unit vectors of float64, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed_for(seed, "canaries"))
    for _ in range(count):
        direction = torch.randn(numbers, generator=generator, dtype=torch.float64)
        yield direction.div_(direction.norm())


def of_the_package(
    clip: float, noise_multiplier: float, clients: int, key: bytes, noise: Literal["normal", "discrete"] = "normal"
) -> tuple[Outgoing, Mechanism]:
    """What `privacy.kind: client` does with this key where all of `clients` take part: at a worker, and at the server.

    Clipping to whole numbers, their noise, the fixed denominator: the very code of a round, without the round.
    """
    settings = PrivacyConfig(
        "client", clip=clip, noise_multiplier=noise_multiplier, noise=noise, delta=0.5, simulate=True, seed=0
    )
    terms = Terms(rate=1.0, clients=clients, noise_multiplier=noise_multiplier, settings=settings)
    level = ClientLevel(terms, Ledger(key, {}, None, []))

    def release(total: Tensor) -> Tensor:
        whole = total.mul_(2.0**level.exponent)
        released = level.release(0, whole, ServerState({WEIGHTS: total.new_zeros(0)}), None)
        assert released is not None, "a sum is released once"
        return released

    return lambda update: level.outgoing(update, Report("canary")), release


def gaussian(clip: float, noise_multiplier: float, seed: int) -> Mechanism:
    """The textbook mechanism: noise of standard deviation clip times noise_multiplier on every number."""

    def release(total: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed_for(seed, "noise"))
        return total + clip * noise_multiplier * torch.randn(len(total), generator=generator, dtype=torch.float64)

    return release
