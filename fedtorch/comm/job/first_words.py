"""A rank's first words at the job's store: it waits, for a limited time, for those that the server has left there.

The ranks have no signs of life of each other yet, so the time alone says that the server is not there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch.distributed as dist

from fedtorch.comm.job.signing import Signature
from fedtorch.core.errors import PreflightError

PAUSE_S = 0.05
"""Between two looks."""
Answer = TypeVar("Answer")


class FirstStore(Protocol):
    """The part of `comm.job.store.Store` that is needed here; the store uses the modules that use this one."""

    start_s: float
    """How long ranks wait for each other at the start."""
    where: str
    """Host and port, for messages."""
    inner: dist.Store
    """torch's store."""
    signature: Signature
    """Signs and checks every value."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str, *, by: int | None) -> str:
        """Read what the rank `by` has written, or any for None; the key must exist."""
        ...

    def read(self, key: str, *, by: int | None) -> str | None:
        """Read; None where that rank has not written what is there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number that begins at 0."""
        ...

    def has(self, keys: Sequence[str]) -> bool:
        """Whether every key exists."""
        ...


def await_server(store: FirstStore, rank: int, look: Callable[[], Answer | None], limit_s: float) -> Answer:
    """Wait until `look` finds something, which is returned; called by any rank but the server.

    Raises:
        PreflightError: it found nothing within `limit_s`.
    """
    give_up_at = time.monotonic() + limit_s
    while (found := look()) is None:
        if time.monotonic() > give_up_at:
            key = " (system.start_timeout)" if limit_s == store.start_s else ""
            raise PreflightError(
                f"rank 0 (the server) did not answer rank {rank} within {limit_s:g} s{key} over the store at "
                f"{store.where}; was it started, on the same store, and with the same version of fedtorch?"
            )
        time.sleep(PAUSE_S)
    return found


def serve_beside(store: FirstStore, name: str, serve: Callable[[dist.Store], None]) -> None:
    """On the server: `serve` in a thread of its own, over a connection of its own, until the store is gone.

    The main thread finds that out as well, so nothing is said of it here.
    """
    connection = store.inner.clone()  # type: ignore[attr-defined]

    def serve_until_it_is_gone() -> None:
        try:
            serve(connection)
        except Exception:
            return

    threading.Thread(target=serve_until_it_is_gone, name=name, daemon=True).start()
