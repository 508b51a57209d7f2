"""Which sums were unmasked: a sum of some, and then of fewer, would show the part of those who are missing.

So a round's sum is opened once, and where privacy draws a new cohort for another attempt at it, once in each. What the
opening came to is kept until the round counts, whatever is repeated after a loss; and a line on the server's disk says
whose sum it was before anybody is asked for a share, so that a round that is done again after a restart is of the same
clients or is given up. Where clients' names are nobody's to know the line has a digest of them, keyed, in place of the
names: equally long however many they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.owner_files import append_own, whole_lines

Whole = npt.NDArray[np.float64]


Place = tuple[int, int]
"""A round of the run, from 0, and the attempt at it."""


@dataclass(frozen=True)
class Settled:
    """Outcome of a round."""

    place: Place
    """which it is"""
    clients: frozenset[str]
    """whose sum it is; none: it was given up"""
    total: Whole | None
    """whole numbers in float64; None: the round was given up"""


class Openings:
    """Openings of one run; on the server alone. With `path` None nothing is on the disk."""

    def __init__(self, path: Path | None, key: bytes = b"") -> None:
        """key: names are not written, but a digest under it."""
        self.path, self._key, self._opened = path, key, dict[Place, str]()
        self._settled: Settled | None = None
        if path is not None and path.exists():
            for line in whole_lines(path.read_bytes()):  # one that was cut off: nobody was asked
                found = json.loads(line)
                # a run that is older than the digests has names
                whose = found["digest"] if "digest" in found else self._of(found["clients"])
                self._opened[found["round"], found.get("attempt", 0)] = whose

    def settled(self, place: Place) -> Settled | None:
        """Outcome of the round; None: nothing yet."""
        return self._settled if self._settled is not None and self._settled.place == place else None

    def may_open(self, place: Place, clients: Collection[str]) -> bool:
        """Was no sum of other clients opened in this round?"""
        whose = self._of(clients)
        return self._opened.get(place, whose) == whose

    def open(self, place: Place, clients: Collection[str]) -> None:
        """Before anybody is asked for a share; a line of it is on the disk when this returns.

        Raises:
            CheckpointError: the disk refuses; then nobody may be asked.
        """
        whose = self._of(clients)
        if self._opened.get(place) == whose:
            return
        if self.path is not None:
            told = {"digest": whose} if self._key else {"clients": sorted(clients)}
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                append_own(self.path, [{"round": place[0], "attempt": place[1], **told}])
            except OSError as error:
                raise CheckpointError(
                    f"{self.path} cannot be written ({error}), so no sum is opened; free some space and start the run "
                    "again"
                ) from error
        self._opened[place] = whose

    def _of(self, clients: Collection[str]) -> str:
        names = json.dumps(sorted(clients)).encode()
        return hashlib.blake2b(names, key=self._key, digest_size=32).hexdigest()

    def settle(self, place: Place, clients: Collection[str], total: Whole | None) -> None:
        """The sum is known, or (of nobody, None) the round was given up."""
        self._settled = Settled(place, frozenset(clients), total)
