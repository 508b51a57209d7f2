"""Quantiles and shares from numbers in bins, with bounds: what holds whatever noise and hidden numbers are."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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
    hidden: int
    """a number that is not shown is taken to be so many at most, and 0 at least"""

    @classmethod
    def of(cls, stats: Stats, table: Table, silo: str | None = None) -> Bins:
        """Bins of one silo; None: of all together."""
        hidden = max(0, (stats.min_count or 1) - 1)
        if silo is None:
            return cls(table, table.pooled, table.deviation, hidden)
        return cls(table, table.silos[silo], table.silo_deviation, hidden)

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
        found = math.fsum(number for number in self.numbers if number is not None)
        return found - least * SIGMAS * self.deviation * math.sqrt(len(self.numbers))

    def from_edge(self, place: int) -> float:
        """Rows from an edge on; what is not shown counts as none."""
        return max(0.0, math.fsum(number for number in self.numbers[place:] if number is not None))

    def most_from_edge(self, place: int) -> float:
        """Rows from an edge on: no more than so many."""
        cells = self.numbers[place:]
        return self.from_edge(place) + sum(each is None for each in cells) * self.hidden + self._noise(len(cells))

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
        rows, more = _sum(before, self.hidden if most else 0), _sum(beyond, 0 if most else self.hidden)
        found = rows - share * (rows + more)
        spread = math.hypot((1 - share) * self._noise(len(before)), share * self._noise(len(beyond)))
        return found + spread if most else found - spread


def public_edges(longest: int, cuts: Collection[int] = ()) -> tuple[float, ...]:
    """0, the powers of √2 from 1 up to the first above `longest`, rounded up to whole numbers, and infinity.

    cuts: lengths for which it is to be exact how many rows are longer; a bin ends above each.
    """
    last = 2 * math.ceil(math.log2(longest + 1)) if longest > 0 else 0
    powers = {float(math.ceil(2.0 ** (half / 2))) for half in range(last + 1)}
    return tuple(sorted({0.0, *powers, *(cut + 1.0 for cut in cuts), math.inf}))


def bin_names(edges: Sequence[float]) -> tuple[str, ...]:
    """Names of the bins between edges, as whole numbers: `[16, 23)`; the last one `[23, inf)`."""
    ends = [f"{math.ceil(edge)}" if math.isfinite(edge) else "inf" for edge in edges]
    return tuple(f"[{low}, {high})" for low, high in zip(ends, ends[1:], strict=False))


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


def _sum(numbers: Sequence[float | None], hidden: int) -> float:
    return math.fsum(hidden if number is None else number for number in numbers)
