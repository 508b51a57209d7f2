"""Average precision and reciprocal rank of one question's candidates, as trec_eval computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def ranking(scores: Sequence[float], docids: Sequence[str]) -> list[int]:
    """Positions of the candidates, best first: score descending, ties by docid descending as strings (trec_eval).

    trec_eval keeps scores in single precision; to agree with it to the last tie, pass float32 values.

    Raises:
        ValueError: no candidates, different lengths, a docid twice, or a score that is no number (NaN).
    """
    if not docids or len(scores) != len(docids):
        raise ValueError(f"got {len(scores)} scores for {len(docids)} candidates; expected one each, at least one")
    if len(set(docids)) < len(docids):
        raise ValueError("a docid occurs twice among the candidates of a question; expected different ones")
    if any(math.isnan(score) for score in scores):
        raise ValueError("a score is NaN; candidates cannot be ranked")
    return sorted(range(len(docids)), key=lambda i: (scores[i], docids[i]), reverse=True)


def average_precision(scores: Sequence[float], labels: Sequence[int], docids: Sequence[str]) -> float | None:
    """(1/R) Σ over relevant ranks i of (relevant among the first i)/i, R the number of relevant candidates.

    None if no candidate is relevant: the caller counts the question as 0 (trec_eval) or leaves it out.

    Args:
        scores, labels, docids: one per candidate, in any order; a label is 1 or 0.

    Raises:
        ValueError: as in `ranking`, or the labels do not fit.
    """
    ranks = _relevant_ranks(scores, labels, docids)
    return sum(found / rank for found, rank in enumerate(ranks, start=1)) / len(ranks) if ranks else None


def reciprocal_rank(scores: Sequence[float], labels: Sequence[int], docids: Sequence[str]) -> float | None:
    """1 / rank of the first relevant candidate; None, arguments and errors as in `average_precision`."""
    ranks = _relevant_ranks(scores, labels, docids)
    return 1.0 / ranks[0] if ranks else None


def _relevant_ranks(scores: Sequence[float], labels: Sequence[int], docids: Sequence[str]) -> list[int]:
    _check_labels(labels, docids)
    return [rank for rank, i in enumerate(ranking(scores, docids), start=1) if labels[i]]


def _check_labels(labels: Sequence[int], docids: Sequence[str]) -> None:
    if len(labels) != len(docids) or any(label not in (0, 1) for label in labels):
        raise ValueError(f"got {len(labels)} labels for {len(docids)} candidates; expected 0 or 1 for each")
