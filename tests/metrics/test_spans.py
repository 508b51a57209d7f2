"""Spans and their counts, against the seqeval library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.metrics.confusion import Counts, f1_macro
from fedtorch.metrics.spans import count_spans, spans_of

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b")
sentences = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=8), min_size=1, max_size=6
)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([], []),
        (["O", "O"], []),
        (["B-X", "I-X", "O"], [("X", 0, 2)]),
        (["B-X", "B-X"], [("X", 0, 1), ("X", 1, 2)]),
        (["O", "I-X", "I-X"], [("X", 1, 3)]),
        (["B-X", "I-Y"], [("X", 0, 1), ("Y", 1, 2)]),
        (["B-a-b", "I-a-b"], [("a-b", 0, 2)]),
    ],
)
def test_spans_are_where_their_tags_say(tags: list[str], expected: list[tuple[str, int, int]]) -> None:
    assert spans_of(tags) == expected


@given(sentences)
def test_figures_equal_seqevals_whatever_a_model_tags(pairs: list[list[tuple[str, str]]]) -> None:
    """Of any tags, also of those that are no IOB2; of each client's counts added they are the same."""
    import warnings

    from seqeval.metrics import f1_score, precision_score, recall_score

    true, found = ([[pair[side] for pair in sentence] for sentence in pairs] for side in (0, 1))
    parts = [count_spans(true[i::3], found[i::3], ("LOC", "PER", "a-b")) for i in range(3)]
    counts = [sum(kind, Counts()) for kind in zip(*parts)]
    total = sum(counts, Counts())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of figures that are undefined, which both take for 0
        assert total.f1 == pytest.approx(f1_score(true, found))
        assert total.precision == pytest.approx(precision_score(true, found))
        assert total.recall == pytest.approx(recall_score(true, found))
        if any(tag != "O" for sentence in pairs for pair in sentence for tag in pair):
            assert f1_macro(counts) == pytest.approx(f1_score(true, found, average="macro"))


def test_spans_are_counted_one_by_one() -> None:
    """Rates would be the same of any multiple of the counts."""
    true = [["B-X", "I-X", "O", "B-Y"], ["B-X", "B-X"]]
    found = [["B-X", "I-X", "O", "O"], ["B-X", "I-X"]]
    # X: one of two that were found is right, of three; Y: none was found of one
    assert count_spans(true, found, ["X", "Y"]) == [Counts(1, 2, 3), Counts(0, 0, 1)]
