"""Which clients take part in a round: a function of (seed, round), the same on every rank and after a resume."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtorch.core.client import Client
from fedtorch.core.seeds import seed_for

SCHEMES = ("uniform", "size_proportional", "numpy_round_seed")


def cohort(
    clients: Sequence[Client], per_round: int, scheme: str, *, seed: int, round: int
) -> list[tuple[Client, int]]:
    """The clients of round `round` (0-based) in the given order, each with how often it was drawn.

    uniform: `per_round` without replacement; all clients if `per_round` is their number or more.
    size_proportional (FedProx): `per_round` draws with replacement, probability n_i / n; a client drawn m times
        appears once with multiplicity m (it trains once and counts m-fold under equal weights).
    numpy_round_seed (parity with FedML): legacy numpy generator seeded with the round index, without replacement.

    Every client must hold training examples. Costs no more than the draw: not a pass over all clients
    (except `size_proportional`, which needs all sizes).
    """
    total = len(clients)
    if scheme == "size_proportional":
        sizes = np.array([client.sizes["train"] for client in clients], dtype=np.float64)
        picks = _generator(seed, round).choice(total, per_round, p=sizes / sizes.sum())
    elif per_round >= total:
        picks = np.arange(total)
    elif scheme == "uniform":
        picks = _generator(seed, round).choice(total, per_round, replace=False)
    elif scheme == "numpy_round_seed":
        picks = np.random.RandomState(round).choice(range(total), per_round, replace=False)
    else:
        raise ValueError(f"unknown sampling scheme {scheme!r}; choose one of {', '.join(SCHEMES)}")
    places, counts = np.unique(picks, return_counts=True)
    return [(clients[place], count) for place, count in zip(places.tolist(), counts.tolist(), strict=True)]


def _generator(seed: int, round: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed_for(seed, "cohort", round)))
