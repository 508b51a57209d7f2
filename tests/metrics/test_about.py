"""What a score's name leaves open is said, and only what counts rows is a share of them."""

from __future__ import annotations

import pytest

from fedtorch.metrics.about import about, counts_hits, is_never_share, less_is_better
from fedtorch.metrics.generation import rouge_l
from fedtorch.metrics.text import row_scores


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", True),
        ("boolq/acc", True),
        ("reward_accuracy", True),
        ("margin", False),
        ("map", False),
        ("f1", False),
        ("rouge_l", False),
        ("loss", False),
    ],
)
def test_only_scores_that_count_rows_have_hits(metric: str, expected: bool) -> None:
    assert counts_hits(metric) is expected


def test_what_is_said_of_rouges_words_is_what_they_are() -> None:
    """Cases, stems and other alphabets: of generated texts rouge-score's words, of few-shot tasks those of the text."""
    assert "a-z and 0-9 in lower case" in about("rouge_l") and "stems" in about("rouge_l")
    assert row_scores(["Running DOGS"], ["run dog"], ["rouge_l"]) == {"rouge_l": 1.0}
    assert row_scores(["собака"], ["собака"], ["rouge_l"]) == {"rouge_l": 0.0}
    assert "as they are written" in about("samsum/rouge_l")
    assert rouge_l(["Dog"], [["dog"]]) == 0.0 and rouge_l(["собака"], [["собака"]]) == 1.0


def test_a_name_that_says_all_needs_no_words() -> None:
    assert about("accuracy") == about("boolq/acc") == ""


@pytest.mark.parametrize(
    ("metric", "expected"), [("rmse", True), ("received/loss", True), ("r2", False), ("acc", False)]
)
def test_of_errors_less_is_better(metric: str, expected: bool) -> None:
    assert less_is_better(metric) is expected


@pytest.mark.parametrize(
    ("metric", "expected"), [("margin", True), ("received/loss", True), ("reward_accuracy", False), ("f1", False)]
)
def test_small_margins_and_losses_are_no_shares(metric: str, expected: bool) -> None:
    assert is_never_share(metric) is expected
