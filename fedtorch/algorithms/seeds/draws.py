"""Draws of the directions that a client's steps take: a function of seed, client and round, so both ends make it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedtorch.core.directions import SEEDS, philox
from fedtorch.core.seeds import seed_for

Candidates = npt.NDArray[np.int64]
Chances = npt.NDArray[np.float64]


def drawn(run_seed: int, client: str, round: int, *, count: int, of: int, chances: Chances | None = None) -> Candidates:
    """So many of the numbers 0 to of − 1, with replacement, shape (count,); by whole numbers alone.

    client: empty: all clients of the round have the same. chances: of each number, None: equal ones. With chances a
    number depends on their bits, which both ends have from the server.
    """
    seed = seed_for(run_seed, "seeds", client, round)
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    words = philox(seed % SEEDS, blocks, seed // SEEDS).reshape(-1)[:count].astype(np.uint64)
    if chances is None:
        return ((words * np.uint64(of)) >> np.uint64(32)).astype(np.int64)
    up_to = np.cumsum(chances)
    found = np.searchsorted(up_to, words.astype(np.float64) / SEEDS * up_to[-1], side="right")
    return np.minimum(found, of - 1).astype(np.int64)
