"""Quantiles and shares from numbers in bins, with bounds: what holds whatever noise and hidden numbers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtorch.stats.table import Stats, Table

SIGMAS = 3.0
"""Noise is taken to be at most so many standard deviations; of a thousand numbers about three are further off."""


@dataclass(frozen=True)
class Bins:
    """Numbers of a table of bins, pooled or of one silo."""

    table: Table
    """whose edges these are"""
    numbers: Sequence[float | None]
    """one for each bin; None: not shown"""
    deviation: float
    """of the noise on each of them"""
    hidden: float = 0.0
    """numbers that are not shown add up to so many at most; infinity: nobody knows"""

    @classmethod
    def of(cls, stats: Stats, table: Table, silo: str | None = None) -> Bins:
        """Bins of one silo; None: of all together.

        Numbers that are not shown are those of the units that are in no bin that is. A single one may be large: it is
        hidden where another one would follow from it.
        """
        numbers = table.pooled if silo is None else table.silos[silo]
        deviation = table.deviation if silo is None else table.silo_deviation
        if None not in numbers:
            return cls(table, numbers, deviation)
        units = _units(stats, silo)
        return cls(table, numbers, deviation, math.inf if units is None else max(0.0, units - _sum(numbers)))

    def quantile(self, share: float) -> tuple[float, float] | None:
        """Bounds of the least value that more than this share of the rows does not exceed: low ≤ it < high.

        Without noise and hidden numbers they are the edges of one bin. None: nothing was counted, or no more than
        noise.
        """
        if self.total(least=True) <= 0:
            return None
        lows = [self._excess(place, share, most=True) > 0 for place in range(len(self.numbers))]
        highs = [self._excess(place, share, most=False) > 0 for place in range(len(self.numbers))]
        last = len(self.numbers) - 1
        low = lows.index(True) if any(lows) else last
        high = highs.index(True) if any(highs) else last
        return self.table.edges[low], self.table.edges[high + 1]

    def total(self, *, least: bool = False) -> float:
        """All rows. least: no fewer than so many."""
        return _sum(self.numbers) - least * SIGMAS * self.deviation * math.sqrt(len(self.numbers))

    def from_edge(self, place: int) -> float:
        """Rows from an edge on; what is not shown counts as none."""
        return max(0.0, _sum(self.numbers[place:]))

    def most_from_edge(self, place: int) -> float:
        """Rows from an edge on: no more than so many."""
        cells = self.numbers[place:]
        hidden = self.hidden if None in cells else 0.0
        return self.from_edge(place) + hidden + self._noise(len(cells))

    def share(self, place: int) -> float | None:
        """Share of the rows from an edge on; None: nothing was counted."""
        total = self.total()
        return min(1.0, self.from_edge(place) / total) if total > 0 else None

    def most_share(self, place: int) -> float:
        """Share of the rows from an edge on: no more than it; 1 where noise leaves nothing to tell it from."""
        total = self.total(least=True)
        return min(1.0, self.most_from_edge(place) / total) if total > 0 else 1.0

    def _noise(self, cells: int) -> float:
        """The most noise on a sum of so many cells."""
        return SIGMAS * self.deviation * math.sqrt(cells)

    def _excess(self, place: int, share: float, *, most: bool) -> float:
        """Rows up to the end of a bin, less this share of all rows: above 0 where the quantile is in it or before.

        most: the largest that it can be, else the least.
        """
        before, beyond = self.numbers[: place + 1], self.numbers[place + 1 :]
        rows, more = _sum(before), _sum(beyond)
        if most and None in before:
            rows += self.hidden
        if not most and None in beyond:
            more += self.hidden
        found = rows - share * (rows + more) if math.isfinite(rows) else rows
        spread = math.hypot((1 - share) * self._noise(len(before)), share * self._noise(len(beyond)))
        return found + spread if most else found - spread


def longest_below(edge: float) -> int | None:
    """The largest whole number below an edge, such as the longest text that is not cut there; None of infinity."""
    return math.ceil(edge) - 1 if math.isfinite(edge) else None


def in_words(bounds: tuple[float, float] | None) -> str:
    """Bounds of a whole number, both included."""
    if bounds is None:
        return "-"
    low, high = math.ceil(bounds[0]), longest_below(bounds[1])
    if high is None:
        return f"{low} or more"
    return str(low) if low >= high else f"{low} to {high}"


def _sum(numbers: Sequence[float | None]) -> float:
    return math.fsum(number for number in numbers if number is not None)


def _units(stats: Stats, silo: str | None) -> float | None:
    """All units, of one silo or together; None: not shown."""
    table = stats.table("units") or stats.table("rows")
    numbers = () if table is None else table.pooled if silo is None else table.silos.get(silo, ())
    return None if not numbers or None in numbers else _sum(numbers)
