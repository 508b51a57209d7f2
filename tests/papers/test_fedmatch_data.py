"""Oracles of FedMatch that concern data and metrics: ranking and BM25."""

from __future__ import annotations

import pytest

from fedtorch.data.bm25 import BM25
from fedtorch.metrics.ranking import average_precision, qrels_lines, reciprocal_rank, run_lines

DOCUMENTS = [
    "the policy covers water damage",
    "water water everywhere not a drop",
    "life insurance policy premium",
    "premium payment for life policy holders",
    "auto insurance covers collision",
]
# question -> candidates' scores, relevant ones, AP and RR
RANKING = {
    "q1": ({"d1": 0.9, "d2": 0.8, "d3": 0.7, "d4": 0.6, "d5": 0.1}, {"d2", "d4"}, 0.5),
    "q2": ({"d1": 0.2, "d2": 0.5, "d3": 0.5}, {"d1"}, 1 / 3),
    "q3": ({"d1": 0.3, "d2": 0.4}, set(), None),
    "q4": ({"d1": 0.5, "d2": 0.5, "d3": 0.1, "d4": 0.5}, {"d2", "d3"}, 0.5),
}


def test_bm25_scores_are_lucenes() -> None:
    scores = BM25(DOCUMENTS, tokenise=str.split).scores("life insurance policy")
    assert scores == pytest.approx([0.244998, 0, 1.133631, 0.594313, 0.433400], abs=1e-6)


@pytest.mark.parametrize("question", RANKING)
def test_average_precision_and_reciprocal_rank_are_trec_evals(question: str) -> None:
    scores, relevant, expected = RANKING[question]
    arguments = (list(scores.values()), [int(docid in relevant) for docid in scores], list(scores))
    assert average_precision(*arguments) == (None if expected is None else pytest.approx(expected, abs=1e-12))
    assert reciprocal_rank(*arguments) == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_means_over_questions_with_both_rules_for_those_without_a_positive() -> None:
    values = [
        average_precision(list(scores.values()), [int(d in relevant) for d in scores], list(scores))
        for scores, relevant, _ in RANKING.values()
    ]
    found = [value for value in values if value is not None]
    assert sum(found) / len(values) == pytest.approx(0.3333333, abs=1e-7)
    assert sum(found) / len(found) == pytest.approx(0.4444444, abs=1e-7)


def test_files_for_trec_eval_hold_the_same_order_and_labels() -> None:
    scores, relevant, _ = RANKING["q4"]
    assert run_lines("q4", list(scores.values()), list(scores), tag="mine") == [
        "q4 Q0 d4 1 0.5 mine",
        "q4 Q0 d2 2 0.5 mine",
        "q4 Q0 d1 3 0.5 mine",
        "q4 Q0 d3 4 0.1 mine",
    ]
    assert qrels_lines("q4", [int(docid in relevant) for docid in scores], list(scores)) == [
        "q4 0 d1 0",
        "q4 0 d2 1",
        "q4 0 d3 1",
        "q4 0 d4 0",
    ]
