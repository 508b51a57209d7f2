"""Which clients take part in a round: a function of (seed, round, clients), equal on every rank and after a resume."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedtorch.core.client import Client
from fedtorch.core.clients import Clients
from fedtorch.core.errors import ConfigError, FedtorchError, QuorumError
from fedtorch.core.seeds import seed_for

SAMPLERS = {
    "uniform": "fedtorch.core.sampling:Uniform",
    "size_proportional": "fedtorch.core.sampling:SizeProportional",
    "numpy_round_seed": "fedtorch.core.sampling:NumpyRoundSeed",
    "poisson": "fedtorch.core.sampling:Poisson",
}
"""Values of `clients.sampling` in YAML, beside `module:Class`."""


@dataclass(frozen=True)
class Sampler:
    """Draws the clients of a round; the fields of a subclass are its YAML keys.

    1. Every rank draws for itself and tells nobody, and a resumed run draws again. So `draw` is a pure function of its
       arguments and of the fields: what is random comes from `generator`; no clock, rank, file or global generator.
    2. What it draws is checked in every round: for the first one before the ranks meet, where they also compare it.
    3. A client that was drawn may still fail or be refused; whether the round then counts is up to `clients.min`.
    """

    with_replacement: ClassVar[bool] = False
    """may a client be drawn more than once for a round? It then trains once and counts once per draw
    (`Report.draws`), which needs an algorithm whose `weighting` is `equal`"""
    may_be_empty: ClassVar[bool] = False
    """may it draw nobody for a round? Without privacy that is a round with too few updates (`clients.min`)"""

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        """At least one and at most `count` of `clients`, in any order.

        clients: all that are left, in the manifest's order; each has a `name`, an `index` and `sizes`, the number of
        examples per split, `train` never 0. Not to be changed. count: `clients.per_round`; without replacement at most
        the number of `clients`. seed: the run's. round: from 0.
        """
        raise NotImplementedError

    def chance(self, client: Client, count: int, *, num_clients: int, num_examples: int) -> Fraction:
        """That `client` is drawn for a round, which says how many steps it expects to take in the run.

        Only `client.schedule_span: run` goes by it. num_examples: in the training sets of all clients.
        """
        return Fraction(min(count, num_clients), num_clients)

    def generator(self, seed: int, round: int) -> np.random.Generator:
        """numpy's, for the draws of one round."""
        return np.random.Generator(np.random.PCG64(seed_for(seed, "cohort", round)))


@dataclass(frozen=True)
class Uniform(Sampler):
    """Without replacement, every client alike."""

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        """All clients if `count` is their number."""
        if count >= len(clients):
            return clients
        return [clients[place] for place in self.generator(seed, round).choice(len(clients), count, replace=False)]


@dataclass(frozen=True)
class SizeProportional(Sampler):
    """FedProx: with replacement, probability n_i / n."""

    with_replacement: ClassVar[bool] = True

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        """A pass over all clients, whose sizes it needs."""
        sizes = _train_sizes(clients)
        places = self.generator(seed, round).choice(len(clients), count, p=sizes / sizes.sum())
        return [clients[place] for place in places]

    def chance(self, client: Client, count: int, *, num_clients: int, num_examples: int) -> Fraction:
        """1 − (1 − n_i / n)^count."""
        return 1 - (1 - Fraction(client.sizes["train"], num_examples)) ** count


@dataclass(frozen=True)
class NumpyRoundSeed(Sampler):
    """FedML, for parity: numpy's legacy generator seeded with the round alone, without replacement."""

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        """All clients if `count` is their number."""
        if count >= len(clients):
            return clients
        return [clients[i] for i in np.random.RandomState(round).choice(range(len(clients)), count, replace=False)]


@dataclass(frozen=True)
class Poisson(Sampler):
    """Every client by itself with the probability `rate`; with privacy the server alone draws, from a secret key."""

    rate: Annotated[float, Field(gt=0, le=1)]
    """q; given as `clients.rate`"""
    may_be_empty: ClassVar[bool] = True

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        """Between none and all of them."""
        drawn = self.generator(seed, round).random(len(clients)) < self.rate
        return [clients[place] for place in np.flatnonzero(drawn).tolist()]

    def chance(self, client: Client, count: int, *, num_clients: int, num_examples: int) -> Fraction:
        """`rate`."""
        return Fraction(self.rate)


def draws_of(per_round: Literal["all"] | int, sampler: Sampler, num_clients: int) -> int:
    """How many draws a round has; with replacement they may be more than there are clients."""
    if per_round == "all":
        return num_clients
    return per_round if sampler.with_replacement else min(per_round, num_clients)


def cohort(
    clients: Sequence[Client], per_round: Literal["all"] | int, sampler: Sampler, *, seed: int, round: int
) -> list[tuple[Client, int]]:
    """The clients of round `round` (from 0), in the order of `clients`, each with how often it was drawn.

    clients: by ascending index, every one with training examples. Costs no more than the sampler's draw: not a pass
    over all clients.

    Raises:
        ConfigError: the sampler failed, or drew what it may not.
        QuorumError: it drew nobody.
    """
    count = draws_of(per_round, sampler, len(clients))
    label = f"clients.sampling: in round {round + 1} `{type(sampler).__name__}`"
    try:
        drawn = sampler.draw(clients, count, seed=seed, round=round)
        drawn = drawn if drawn is clients else list(drawn)
    except (FedtorchError, MemoryError):
        raise
    except Exception as error:  # whatever code from outside does
        raise ConfigError(f"{label} failed: {type(error).__name__}: {error}") from error
    if not drawn and not sampler.may_be_empty:
        raise QuorumError(f"{label} drew nobody; let it draw at least one client")
    if len(drawn) > count:
        raise ConfigError(f"{label} drew {len(drawn)} clients; let it draw at most `count`, here {count}")
    if drawn is clients:  # as it may be long
        return [(client, 1) for client in clients]
    draws = Counter(_place(clients, client, label) for client in drawn)
    if not sampler.with_replacement and len(draws) < len(drawn):
        (place, _), *_ = draws.most_common(1)
        raise ConfigError(
            f"{label} drew client `{clients[place].name}` more than once; draw it once, or set `with_replacement` in "
            "its class"
        )
    return [(clients[place], draws[place]) for place in sorted(draws)]


def _train_sizes(clients: Sequence[Client]) -> NDArray[np.float64]:
    if isinstance(clients, Clients):  # without making them
        return clients.train_sizes.astype(np.float64)
    return np.array([client.sizes["train"] for client in clients], dtype=np.float64)


def _place(clients: Sequence[Client], client: object, label: str) -> int:
    """Where a client that was drawn stands in `clients`, which are in the order of their indices."""
    if isinstance(client, Client):
        if isinstance(clients, Clients):
            found = clients.place_of(client.index)
            place = len(clients) if found is None else found
        else:
            place = bisect_left(clients, client.index, key=attrgetter("index"))
        if place < len(clients) and clients[place] == client:
            return place
    shown = f"client `{client.name}`" if isinstance(client, Client) else repr(client)[:50]
    raise ConfigError(f"{label} drew {shown}, which is none of `clients`; let it draw elements of `clients`")
