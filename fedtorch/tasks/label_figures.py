"""Figures of texts with labels that are no means over rows, and the metrics that can be chosen of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtorch.core.scores import COUNT
from fedtorch.metrics.chosen import spearman
from fedtorch.metrics.confusion import Counts, f1_macro, f1_micro, matthews
from fedtorch.metrics.correlation import pearson
from fedtorch.tasks.labelled_texts import Problem

BUILT_IN: Mapping[str, Any] = {
    "accuracy": "accuracy",
    "macro_f1": "f1_macro",
    "micro_f1": "f1_micro",
    "matthews": "matthews",
    "pearson": "pearson",
    "spearman": spearman,
    "negative_squared_error": "negative_squared_error",
}
"""What `eval.metrics` may name -> a name among the scores or `label_figures`, or a function."""
_OF_NUMBERS = ("pearson", "spearman", "negative_squared_error")


def known_metrics(problem: Problem) -> dict[str, Any]:
    """Correlations of numbers, the others of labels; Matthews' of one label a row only."""
    names = [name for name in BUILT_IN if (name in _OF_NUMBERS) == (problem == "regression")]
    return {name: BUILT_IN[name] for name in names if (name, problem) != ("matthews", "multi_label")}


def label_figures(problem: Problem, size: int, totals: Mapping[str, float]) -> dict[str, float]:
    """F1 and Matthews correlation from counts of `size` labels, or Pearson's correlation from moments.

    totals: sums of scores by name.
    """
    if problem == "regression":
        return {
            "pearson": pearson({n.removeprefix(COUNT): total for n, total in totals.items() if n.startswith(COUNT)})
        }
    counts = [
        Counts(*(totals.get(f"{COUNT}{label}/{name}", 0.0) for name in ("hits", "predicted", "true")))
        for label in range(size)
    ]
    every = problem == "multi_label"  # where scikit-learn, too, takes the mean over labels that never occur
    figures = {"f1_macro": f1_macro(counts, every=every), "f1_micro": f1_micro(counts)}
    if problem == "single_label":
        figures["matthews"] = matthews(counts, sum(count.true for count in counts))
    return figures
