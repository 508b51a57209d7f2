"""Facts of a score by its name: whether it counts right rows, and what its name leaves open."""

from __future__ import annotations

_PARTS = ("overall", "agg", "sel", "wn", "wc", "op", "val", "logical_form", "execution")
HITS = frozenset(("accuracy", "acc", "exact_match", "em", "reward_accuracy", *_PARTS))
"""Scores whose sum counts rows (or words) that are right, so that their mean is a share of them."""

_ROUGE = "F1 of {0}, over words of a-z and 0-9 in lower case with Porter's stems, as rouge-score has them"
_OPEN = {
    "rouge_1": _ROUGE.format("single words"),
    "rouge_2": _ROUGE.format("pairs of words"),
    "rouge_l": _ROUGE.format("the longest common subsequence"),
    "reward_accuracy": "rows where the chosen answer has gained more over the start's model than the rejected one; "
    "with KTO where a desirable answer has gained, or another one lost",
    "margin": "the mean of these gains' difference times β; with KTO of the gain, or of minus that of another answer",
    "r2": "1 − squared errors / squared differences from the mean; none where all true values are equal",
}
_OF_TASKS = {
    "rouge_l": "F1 of the longest common subsequence, over words between white space, as they are written",
    "matthews": "Matthews' correlation of `acceptable` against every other answer",
}
"""Of few-shot tasks, whose scores are called `<task>/<metric>`."""


_ERRORS = frozenset(("loss", "rmse", "mae", "perplexity"))


def is_never_share(metric: str) -> bool:
    """Is it none of 1, also where all its figures lie between 0 and 1?"""
    name = metric.rpartition("/")[2]
    return name in _ERRORS or name == "margin"


def less_is_better(metric: str) -> bool:
    """Is the best client the one with the least of it?"""
    return metric.rpartition("/")[2] in _ERRORS


def counts_hits(metric: str) -> bool:
    """Is the score's sum a number of right rows?"""
    return metric.rpartition("/")[2] in HITS


def about(metric: str) -> str:
    """Say what the name leaves open; empty where it says all."""
    task, _, name = metric.removeprefix("received/").rpartition("/")
    return (_OF_TASKS if task else _OPEN).get(name, "")
