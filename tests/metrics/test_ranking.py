from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_average_precision_score

from fedtorch.metrics.ranking import average_precision, ranking, reciprocal_rank

# distinct scores, each with a label
LISTS = st.lists(
    st.tuples(st.integers(-1000, 1000), st.integers(0, 1)), min_size=1, max_size=30, unique_by=lambda e: e[0]
)


@given(LISTS)
def test_without_ties_average_precision_is_scikit_learns(entries: list[tuple[int, int]]) -> None:
    scores, labels = [float(score) for score, _ in entries], [label for _, label in entries]
    found = average_precision(scores, labels, [str(i) for i in range(len(entries))])
    if not any(labels):
        assert found is None
        return
    assert found == pytest.approx(label_ranking_average_precision_score(np.array([labels]), np.array([scores])))


@given(LISTS, st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(entries: list[tuple[int, int]], random: object) -> None:
    rows = [(float(score % 7), label, str(i)) for i, (score, label) in enumerate(entries)]  # with ties
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for metric in (average_precision, reciprocal_rank):
        assert metric(*map(list, zip(*rows, strict=True))) == metric(*map(list, zip(*shuffled, strict=True)))


def test_ties_go_to_the_docid_that_is_last_as_a_string() -> None:
    assert ranking([0.5, 0.5, 0.5], ["10", "9", "1"]) == [1, 0, 2]
    assert reciprocal_rank([0.0, 0.0], [1, 0], ["b", "a"]) == 1.0
    assert reciprocal_rank([0.0, 0.0], [1, 0], ["a", "b"]) == 0.5


@pytest.mark.parametrize(
    ("scores", "labels", "docids", "message"),
    [
        ([], [], [], "at least one"),
        ([1.0], [1, 0], ["a", "b"], "1 scores for 2"),
        ([1.0, 2.0], [1], ["a", "b"], "1 labels for 2"),
        ([1.0, 2.0], [1, 2], ["a", "b"], "expected 0 or 1"),
        ([1.0, 2.0], [1, 0], ["a", "a"], "twice"),
        ([1.0, float("nan")], [1, 0], ["a", "b"], "NaN"),
    ],
)
def test_what_cannot_be_ranked_is_an_error(
    scores: list[float], labels: list[int], docids: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        average_precision(scores, labels, docids)
