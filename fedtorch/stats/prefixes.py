"""Names that nobody declared, found byte by byte on released counts (the idea of TrieHH, Zhu et al. 2020, 1902.08534).

In each round every silo counts how its names go on from the beginnings that were announced: by which byte, or not at
all. What comes out above a threshold is announced next, or is a name. Beginnings follow from released numbers alone, so
all ranks compute the same ones. Every cell of a round is noised, empty ones too; the threshold serves usefulness.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from fedtorch.stats.questions import BRANCHES, END, CountPlan, Place, Question

Vector = npt.NDArray[np.float64]
CHANCE = 0.1
"""Cells of a level that nobody has and that are above the threshold all the same, on average."""


@dataclass(frozen=True)
class Noise:
    """Noise on the numbers of a run, as all parties know it."""

    multiplier: float
    """z; 0: there is none"""
    honest: int | None = None
    """t − a, where silos add shares: so many shares are as much as z asks for; None: each silo adds all of it"""

    def of_silo(self, most: int) -> float:
        """Standard deviation of what one silo adds to a number of a table with at most so many cells of a unit."""
        return self.multiplier * math.sqrt(most / (self.honest or 1))

    def pooled(self, most: int, silos: int) -> float:
        """Standard deviation on the sum of so many silos' numbers."""
        return self.of_silo(most) * math.sqrt(silos)


@dataclass(frozen=True)
class Name:
    """A name that was found."""

    text: bytes
    """in UTF-8"""
    count: float
    """as released"""


def threshold(deviation: float, cells: int, chance: float = CHANCE) -> float:
    """σ Φ⁻¹(1 − chance / cells): above it are, on average, `chance` of so many cells that nobody has."""
    return deviation * NormalDist().inv_cdf(1.0 - chance / cells) if deviation else 0.0


@dataclass(frozen=True)
class Search:
    """All that is known of the names of one question after some rounds."""

    plan: CountPlan
    """where its numbers are"""
    question: Question
    """whose names are found"""
    noise: Noise
    """on the numbers"""
    least: int
    """where there is no noise: the least count that is followed"""

    def beginnings(self, vector: Vector, level: int) -> list[bytes]:
        """Beginnings that are announced for a level: ascending, of so many bytes. vector: with the levels before it."""
        found = [b""]
        for before in range(level):
            place, limit = self._place(before), self.limit(vector, before, len(found))
            cells = _cells(vector, place, len(found))[:, :END]
            rows, columns = np.nonzero(self._is_above(cells, limit))
            each = [(-cells[r, c], found[r] + bytes([c])) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)]
            assert self.question.found is not None
            found = sorted(text for _, text in sorted(each)[: self.question.found.width])
        return found

    def names(self, vector: Vector, rounds: int) -> list[Name]:
        """All names found in so many rounds, the most frequent first, of equal ones the first in the alphabet.

        Bytes that are no UTF-8, which noise can make up, are no name.
        """
        found = []
        for level in range(min(rounds, self._levels)):
            beginnings = self.beginnings(vector, level)
            ends = _cells(vector, self._place(level), len(beginnings))[:, END]
            above = self._is_above(ends, self.limit(vector, level, len(beginnings)))
            found += [
                Name(text, float(ends[row]))
                for row, text in enumerate(beginnings)
                if above[row] and text and _is_text(text)
            ]
        return sorted(found, key=lambda name: (-name.count, name.text))

    def limit(self, vector: Vector, level: int, beginnings: int) -> float:
        """Number that a cell of a level must be above, with so many beginnings; 0 without noise, see `least`."""
        silos = int(round(float(vector[self.plan.present(self._place(level).round)].sum())))
        deviation = self.noise.pooled(self.question.most, silos)
        return threshold(deviation, max(1, beginnings) * BRANCHES)

    def _is_above(self, cells: Vector, limit: float) -> npt.NDArray[np.bool_]:
        return cells > limit if self.noise.multiplier else cells >= self.least

    @property
    def _levels(self) -> int:
        assert self.question.found is not None
        return self.question.found.longest + 1

    def _place(self, level: int) -> Place:
        return next(p for p in self.plan.places if p.question.name == self.question.name and p.level == level)


def _cells(vector: Vector, place: Place, beginnings: int) -> Vector:
    """Counts of a level, shape (beginnings, 257)."""
    return vector[place.start : place.start + beginnings * BRANCHES].reshape(beginnings, BRANCHES)


def add_level(out: Vector, beginnings: Sequence[bytes], names: Iterable[Mapping[bytes, int]], *, once: bool) -> None:
    """Add how the names of units go on from beginnings of one length. out: the cells of the level, flat.

    names: of each unit, with how often it has each. once: a unit counts once in a cell, whatever it has.
    """
    if not beginnings:
        return
    level, places = len(beginnings[0]), {text: row * BRANCHES for row, text in enumerate(beginnings)}
    for own in names:
        cells = _branches(own, level, places)
        if once:
            out[list({cell for cell, _ in cells})] += 1.0
        else:
            for cell, times in cells:
                out[cell] += times


def _branches(own: Mapping[bytes, int], level: int, places: Mapping[bytes, int]) -> Iterator[tuple[int, int]]:
    """(cell, times) of each name that begins so."""
    for name, times in own.items():
        start = places.get(name[:level]) if len(name) >= level else None
        if start is not None:
            yield start + (name[level] if len(name) > level else END), times


def _is_text(name: bytes) -> bool:
    try:
        return name.decode().isprintable()
    except UnicodeDecodeError:
        return False
