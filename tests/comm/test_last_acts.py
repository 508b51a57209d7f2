"""What a rank sent just before it left is read, though the word that it left is known already."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from fedtorch.comm.job.liveness import Liveness
from fedtorch.comm.sums.masked import Notes


class LateStore:
    """A note is there after the waiting for it was given up, which is when its writer is seen to have left."""

    def __init__(self) -> None:
        self.is_there = False

    def wait(self, keys: Collection[str], limit_s: float) -> bool:
        """As a store's."""
        return self.is_there

    def has(self, keys: Collection[str]) -> bool:
        """As a store's."""
        return self.is_there

    def get(self, key: str, by: int | None = None) -> str:
        """As a store's."""
        return '{"round": 4}'


class Watch(Liveness):
    """Sees that the server has left."""

    def __init__(self, store: LateStore) -> None:
        self.store, self.timeout_s = store, 2.0

    def beat(self, *, left: str = "", failed: bool = False, **doing: Any) -> None:
        """Tell nobody."""

    def missing(self, awaited: Collection[int]) -> list[int]:
        """The server, whose note has come meanwhile."""
        self.store.is_there = True
        return [0]


def test_a_secure_sum_reads_the_servers_last_note() -> None:
    store = LateStore()
    group = SimpleNamespace(store=store, liveness=Watch(store), generation=0, sequence=1)
    notes = Notes(SimpleNamespace(group=group))  # type: ignore[arg-type]
    assert notes.await_server("reveal") == {"round": 4}
