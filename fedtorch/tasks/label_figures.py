"""Figures of texts with labels that are no means over rows, and the metrics that can be chosen of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtorch.core.scores import COUNT
from fedtorch.metrics.chosen import spearman
from fedtorch.metrics.confusion import Counts, f1_macro, f1_micro, matthews
from fedtorch.metrics.regression import FIGURES, figures
from fedtorch.tasks.labelled_texts import Problem

BUILT_IN: Mapping[str, Any] = {
    "accuracy": "accuracy",
    "macro_f1": "f1_macro",
    "micro_f1": "f1_micro",
    "matthews": "matthews",
    "pearson": "pearson",
    "spearman": spearman,
    "rmse": "rmse",
    "mae": "mae",
    "r2": "r2",
    "negative_squared_error": "negative_squared_error",
}
"""What `eval.metrics` may name -> a name among the scores or `label_figures`, or a function."""
_OF_NUMBERS = (*FIGURES, "spearman", "negative_squared_error")


def known_metrics(problem: Problem) -> dict[str, Any]:
    """Errors and correlations of numbers, the others of labels; Matthews' of one label a row only."""
    names = [name for name in BUILT_IN if (name in _OF_NUMBERS) == (problem == "regression")]
    return {name: BUILT_IN[name] for name in names if (name, problem) != ("matthews", "multi_label")}


def label_figures(problem: Problem, size: int, totals: Mapping[str, float]) -> dict[str, float]:
    """F1 and Matthews correlation from counts of `size` labels, or errors and Pearson's correlation from sums.

    totals: sums of scores by name.
    """
    if problem == "regression":
        return figures({n.removeprefix(COUNT): total for n, total in totals.items() if n.startswith(COUNT)})
    counts = [
        Counts(*(totals.get(f"{COUNT}{label}/{name}", 0.0) for name in ("hits", "predicted", "true")))
        for label in range(size)
    ]
    if any(totals.values()) and not any(name.startswith(COUNT) for name in totals):  # noised scores have no counts
        return {}
    every = problem == "multi_label"  # where scikit-learn, too, takes the mean over labels that never occur
    found = {"f1_macro": f1_macro(counts, every=every), "f1_micro": f1_micro(counts)}
    if problem == "single_label":
        found["matthews"] = matthews(counts, sum(count.true for count in counts))
    return found
