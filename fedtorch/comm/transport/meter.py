"""Counts what is exchanged, in bytes and messages, per phase."""

from __future__ import annotations

from collections import Counter
from typing import Literal


class Meter:
    """Bytes up (client to server) and down (server to client) of one rank.

    Logical bytes are what the papers count: every client receives its own copy of the weights and sends one update
    and one report, wherever it is hosted. They are counted on the server only and are the same for one process and
    for many. Physical bytes are the payloads that this rank really handed to or took from the network: on the server
    what it received (up) and sent (down), on a worker what it sent (up) and received (down); zero in one process.
    A collective counts as one copy of its payload per worker; gloo's own rings and headers are not included.
    """

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def count(
        self, direction: Literal["up", "down"], phase: str, *, logical: int = 0, physical: int = 0, messages: int = 0
    ) -> None:
        """Add to the counters; `messages` are logical ones."""
        for name, amount in (
            (f"bytes_{direction}", logical),
            (f"physical_{direction}", physical),
            (f"messages_{direction}", messages),
        ):
            self._total[name] += amount
            if amount:
                self._total[f"{phase}/{name}"] += amount

    def totals(self) -> dict[str, int]:
        """Everything since the start: `bytes_up`, `physical_up`, `messages_up`, `…_down`, and `<phase>/…`."""
        return dict(self._total)

    def take(self) -> dict[str, int]:
        """Return the counters since the last `take`; phases without traffic since then are left out."""
        since = {name: value - self._taken[name] for name, value in self._total.items()}
        self._taken = self._total.copy()
        return {name: value for name, value in since.items() if value or "/" not in name}
