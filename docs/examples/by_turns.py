"""A user's sampler: the clients take turns.

Named in YAML as `clients: {per_round: 2, sampling: {name: "by_turns:ByTurns", first: 1}}`, with this file's folder as
the working directory or on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtorch import Client, Sampler


@dataclass(frozen=True)
class ByTurns(Sampler):
    """As many clients as a round has, going on in the next round behind the last one of this."""

    first: int = 0
    """the place of the client with which the first round begins"""

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        """The next `count` clients of the manifest, from its beginning again where it ends."""
        start = self.first + round * count
        return [clients[(start + place) % len(clients)] for place in range(count)]
