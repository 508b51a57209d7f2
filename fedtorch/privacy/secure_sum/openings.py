"""Which sums were unmasked: a sum of some, and then of fewer, would show the part of those who are missing.

So a round's sum is opened once, and where privacy draws a new cohort for another attempt at it, once in each. What the
opening came to is kept until the round counts, whatever is repeated after a loss; and a line on the server's disk says
whose sum it was before anybody is asked for a share, so that a round that is done again after a restart is of the same
clients or is given up.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedtorch.privacy.owner_files import append_own

Whole = npt.NDArray[np.float64]


Place = tuple[int, int]
"""A round of the run, from 0, and the attempt at it."""


@dataclass(frozen=True)
class Settled:
    """What became of a round."""

    place: Place
    """which it is"""
    clients: frozenset[str]
    """whose sum it is; none: it was given up"""
    total: Whole | None
    """whole numbers in float64; None: the round was given up"""


class Openings:
    """Of one run; on the server alone. With `path` None nothing is on the disk."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._opened = path, dict[Place, frozenset[str]]()
        self._settled: Settled | None = None
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                if line.endswith("}"):  # the last may have been cut off, and then nobody was asked
                    found = json.loads(line)
                    self._opened[found["round"], found.get("attempt", 0)] = frozenset(found["clients"])

    def settled(self, place: Place) -> Settled | None:
        """What became of the round; None: nothing yet."""
        return self._settled if self._settled is not None and self._settled.place == place else None

    def may_open(self, place: Place, clients: Collection[str]) -> bool:
        """Was no sum of other clients opened in this round?"""
        return self._opened.get(place, frozenset(clients)) == frozenset(clients)

    def open(self, place: Place, clients: Collection[str]) -> None:
        """Before anybody is asked for a share."""
        if self._opened.get(place) == frozenset(clients):
            return
        self._opened[place] = frozenset(clients)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            append_own(self.path, [{"round": place[0], "attempt": place[1], "clients": sorted(clients)}])

    def settle(self, place: Place, clients: Collection[str], total: Whole | None) -> None:
        """The sum is known, or (of nobody, None) the round was given up."""
        self._settled = Settled(place, frozenset(clients), total)
