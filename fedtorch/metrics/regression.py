"""Errors of predicted numbers from sums, which can be added over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedtorch.metrics.correlation import is_constant, moments, pearson

FIGURES = ("rmse", "mae", "r2", "pearson")
"""What `figures` gives."""


def sums(true: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """The moments, and the sums of absolute (`absolute`) and squared errors (`squared`)."""
    errors = [t - p for t, p in zip(true, predicted, strict=True)]
    return {
        **moments(true, predicted),
        "absolute": sum(map(abs, errors), 0.0),
        "squared": sum((error * error for error in errors), 0.0),
    }


def figures(found: Mapping[str, float]) -> dict[str, float]:
    """RMSE, MAE, R² and Pearson's correlation of all rows behind the sums; nothing of no rows.

    R² = 1 − Σ(t − p)² / Σ(t − mean t)². It has no value, and is left out, where the true values are all equal, so of
    one row too: scikit-learn gives 0, 1 or NaN there. Pearson's correlation is 0 where it has no value. Of predictions
    that are not finite, as of a model that diverged, the errors are left out.
    """
    if not (count := found.get("n", 0.0)):
        return {}
    result = {"rmse": math.sqrt(found["squared"] / count), "mae": found["absolute"] / count}
    if not is_constant(found["x"], found["xx"], count):
        result["r2"] = 1 - found["squared"] / (found["xx"] - found["x"] * found["x"] / count)
    return {name: value for name, value in result.items() if math.isfinite(value)} | {"pearson": pearson(found)}
