"""Dealing a pool of questions to a server and many clients: a function of the sizes and the seed, kept as integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import seed_for


@dataclass(frozen=True, eq=False)
class Deal:
    """Who holds which rows of the pool. Memory: 4 bytes per dealt question and 8 per client."""

    server: NDArray[np.int32]
    """row numbers of the server's share"""
    rows: NDArray[np.int32]
    """all clients' row numbers, one client after the other"""
    starts: NDArray[np.int64]
    """where each client's begin in `rows`, and the end, shape (clients + 1,)"""

    def of(self, client: int) -> list[int]:
        """The row numbers of one client, each once."""
        found: list[int] = self.rows[self.starts[client] : self.starts[client + 1]].tolist()
        return found

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Questions per client."""
        return np.diff(self.starts)

    def num_overlapping(self) -> int:
        """Clients that hold a question which another client holds too."""
        counts = np.bincount(self.rows, minlength=1)
        shared = np.append((counts > 1)[self.rows], False)
        return int(np.count_nonzero(np.logical_or.reduceat(shared, self.starts[:-1]) & (self.sizes > 0)))


def deal(pool: NDArray[np.int32], *, server: int, clients: int, sizes: tuple[int, int], seed: int) -> Deal:
    """Give `server` rows of `pool` to the server, then to each client a number drawn uniformly from `sizes`.

    Questions are dealt once while they last; when the pool is used up it is shuffled anew and dealt again, never twice
    to one client. The server's rows are never a client's. The server's share of a smaller S is the beginning of that
    of a larger one, and the clients' sizes do not depend on S.

    Raises:
        ConfigError: the server's share is larger than the pool, or what it leaves is smaller than one client.
    """
    low, high = sizes
    if server > len(pool):
        raise ConfigError(
            f"task.server_labelled is {server} but the training data have {len(pool)} usable questions; "
            f"set it to at most {max(0, len(pool) - high)}, so that clients have some too"
        )
    left = len(pool) - server
    if clients and left < high:
        raise ConfigError(
            f"task.server_labelled leaves {left} of {len(pool)} questions for the clients but one client may "
            f"hold {high}; set task.server_labelled to at most {max(0, len(pool) - high)} or lower task.client_size"
        )
    order = pool[_generator(seed, "server share").permutation(len(pool))]
    mine, rest = order[:server], order[server:]
    counts = _generator(seed, "client sizes").integers(low, high, size=clients, endpoint=True)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Deal(np.ascontiguousarray(mine), _dealt(rest, starts, seed), starts)


def _dealt(rest: NDArray[np.int32], starts: NDArray[np.int64], seed: int) -> NDArray[np.int32]:
    """Rows for the clients in turn, from one shuffling of `rest` after the other."""
    total = int(starts[-1])
    rows = np.empty(total, dtype=np.int32)
    rows[: len(rest)] = rest[:total]
    for number, place in enumerate(range(len(rest), total, len(rest) or 1), start=1):
        again = rest[_generator(seed, "dealt again", number).permutation(len(rest))]
        client = int(np.searchsorted(starts, place, side="right")) - 1
        begun = rows[starts[client] : place]  # the client whose questions come from both shufflings
        open_places = int(starts[client + 1]) - place
        if len(begun) and np.isin(again[:open_places], begun).any():
            is_held = np.isin(again, begun)  # what this client has goes to the end of the new shuffling
            again = np.concatenate([again[~is_held], again[is_held]])
        rows[place : place + len(rest)] = again[: total - place]
    return rows


def _generator(seed: int, purpose: str, *parts: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed_for(seed, purpose, *parts)))
