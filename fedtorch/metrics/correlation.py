"""Pearson's correlation from sums, which can be added over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def moments(true: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """Number of pairs, and sums of their values, squares and products."""
    return {
        "n": float(len(true)),
        "x": sum(true, 0.0),
        "y": sum(predicted, 0.0),
        "xx": sum((x * x for x in true), 0.0),
        "yy": sum((y * y for y in predicted), 0.0),
        "xy": sum((x * y for x, y in zip(true, predicted, strict=True)), 0.0),
    }


def pearson(sums: Mapping[str, float]) -> float:
    """The correlation of all pairs; 0 where it is undefined: fewer than two pairs, or one side is constant.

    sums: of `moments`, added. Digits are lost where the values' mean is far larger than their spread: 6 of 16 where it
    is 1000 times larger.
    """
    if not (n := sums.get("n", 0.0)):
        return 0.0
    x, y, xx, yy, xy = (sums[name] / n for name in ("x", "y", "xx", "yy", "xy"))
    spread = (xx - x * x) * (yy - y * y)
    return (xy - x * y) / math.sqrt(spread) if spread > 0 else 0.0
