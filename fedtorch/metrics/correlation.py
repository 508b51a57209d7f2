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
    """The correlation of all pairs; 0 where it is undefined: fewer than two pairs, one side is constant, or not finite.

    sums: of `moments`, added. Digits are lost where the values' mean is far larger than their spread: 6 of 16 where it
    is 1000 times larger.
    """
    if not (n := sums.get("n", 0.0)) or any(is_constant(sums[a], sums[a + a], n) for a in "xy"):
        return 0.0
    x, y, xx, yy, xy = (sums[name] / n for name in ("x", "y", "xx", "yy", "xy"))
    spread = (xx - x * x) * (yy - y * y)
    return (xy - x * y) / math.sqrt(spread) if math.isfinite(spread) else 0.0


def is_constant(total: float, squares: float, count: float) -> bool:
    """Are all values equal, as far as their sum and that of their squares tell?

    Of equal values rounding leaves some 1e-15 of the mean square, up to 1e-12 of very many; a spread below a millionth
    of the mean cannot be told from that.
    """
    mean = total / count
    return squares / count - mean * mean <= 1e-12 * squares / count
