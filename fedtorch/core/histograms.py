"""Histograms as plain numbers: what a client counts in a round, in bins that all runs share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

PREFIX = "histogram/"
"""Before the names of such counts in `Report.extra`: they are recorded, and not drawn round by round."""
LIMIT = 100
"""Bins are one wide, from −LIMIT to LIMIT; what lies beyond is counted in the outermost ones."""


def counts(name: str, values: Iterable[float]) -> dict[str, float]:
    """`histogram/<name>/<bin>` -> how many of `values` lie in [bin, bin + 1); bins without any are left out, as is NaN.

    name: of letters and underscores.
    """
    found = Counter(math.floor(min(max(value, -LIMIT), LIMIT - 1)) for value in values if not math.isnan(value))
    return {f"{PREFIX}{name}/{place}": float(found[place]) for place in sorted(found)}


def read(numbers: Mapping[str, object]) -> dict[str, dict[int, float]]:
    """name -> left end of a bin -> count, of what `counts` wrote among other numbers."""
    found: dict[str, dict[int, float]] = {}
    for key, value in numbers.items():
        if key.startswith(PREFIX) and isinstance(value, int | float):
            name, _, place = key.removeprefix(PREFIX).rpartition("/")
            found.setdefault(name, {})[int(place)] = float(value)
    return found
