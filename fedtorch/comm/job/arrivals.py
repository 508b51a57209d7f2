"""Which client of a round was done first: a count that all ranks share, by no clock of any of them."""

from __future__ import annotations

from fedtorch.comm.job.store import Store


class Arrivals:
    """Order in which clients of one process are done, one after the other. All ranks begin the same rounds."""

    def __init__(self) -> None:
        self._rounds, self._count = 0, 0

    def begin(self) -> None:
        """Begin a round: nobody has arrived."""
        self._rounds, self._count = self._rounds + 1, 0

    def arrive(self) -> int:
        """A client is done; how many are, with it."""
        self._count += 1
        return self._count

    def count(self) -> int:
        """How many are done."""
        return self._count


class SharedArrivals(Arrivals):
    """Order in which clients of several ranks are done, kept in the store; a call asks it once."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def arrive(self) -> int:
        """Count a client in; no two clients get the same number."""
        return self._store.add(f"arrivals/{self._rounds}", 1)

    def count(self) -> int:
        """Return how many have arrived."""
        return self._store.add(f"arrivals/{self._rounds}", 0)
