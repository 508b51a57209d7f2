"""CrossFit's metrics: worked figures and the edges."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedtorch.metrics import confusion
from fedtorch.metrics.confusion import count_labels
from fedtorch.metrics.generation import METRICS, SHORT, accuracy, is_undefined, macro_f1, matthews, normalise

ORACLES = [
    ("EM", ["The  Paris!", "a cat", "42"], [["paris"], ["dog", "the cat"], ["42.0"]], 2 / 3),
    ("QA-F1", ["the big red dog", "", "blue whale"], [["red dog"], ["x"], ["whale", "a very blue sea"]], 0.4888889),
    ("Classification-F1", ["pos", "neg", "pos", "neu"], [["pos"], ["neg"], ["neg"], ["pos"]], 0.3888889),
    ("Classification-F1", ["pos", "neg", "pos", "neg"], [["pos"], ["neg"], ["neg"], ["pos"]], 0.5),
    ("Pearson-Correlation", ["1", "2.5", "2"], [["1"], ["2"], ["3"]], 0.6546537),
    ("Rouge-L", ["the cat lay on a mat"], [["the cat sat on the mat"]], 0.6666667),
    ("Rouge-L", ["", "Same"], [["x"], ["other", "Same"]], 0.5),
    ("ACC", ["Yes", "no ", "maybe"], [["yes"], ["no"], ["no"]], 2 / 3),
]


@pytest.mark.parametrize(("name", "predictions", "golds", "expected"), ORACLES, ids=[case[0] for case in ORACLES])
def test_the_specifications_figures(name: str, predictions: list[str], golds: list[list[str]], expected: float) -> None:
    assert METRICS[name](predictions, golds) == pytest.approx(expected, abs=1e-6)


def test_accuracy_without_stripping_is_crossfits() -> None:
    assert accuracy(["no ", "Yes"], [["no"], ["yes"]], strip=False) == 0.5


def test_normal_form_keeps_words_that_only_begin_like_an_article() -> None:
    assert normalise("An  ant, the THEME; a b.") == "ant theme b"


def test_matthews_of_opposite_and_constant_predictions() -> None:
    golds = [["acceptable"], ["unacceptable"]] * 2
    assert matthews(["unacceptable", "acceptable"] * 2, golds) == -1.0
    assert matthews(["acceptable"] * 4, golds) == 0.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
@example([(0, 0), (1, 1), (2, 1), (2, 2), (2, 0)])
def test_matthews_of_any_number_of_labels_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import matthews_corrcoef

    true, found = zip(*pairs)
    counts = count_labels([[t] for t in true], [[f] for f in found], 3)
    assert confusion.matthews(counts, len(pairs)) == pytest.approx(matthews_corrcoef(true, found), abs=1e-12)


def test_a_stray_answer_is_unacceptable_and_no_class_of_its_own() -> None:
    golds = [["acceptable"], ["unacceptable"], ["acceptable"], ["unacceptable"]]
    found = ["acceptable", "it is fine", " acceptable", "acceptable"]
    assert matthews(found, golds) == pytest.approx((2 * 1 - 1 * 0) / (3 * 2 * 2 * 1) ** 0.5)  # 2 true, 1 false, 1 right


def test_macro_f1_without_stripping_is_crossfits() -> None:
    assert macro_f1(["no ", "yes"], [["no"], ["yes"]]) == 1.0
    assert macro_f1(["no ", "yes"], [["no"], ["yes"]], strip=False) == pytest.approx(1 / 3)


@pytest.mark.parametrize("predictions", [["1", "two"], ["3", "3"], ["1", "nan"], ["1", "inf"]])
def test_undefined_pearson_is_zero_and_told_apart(predictions: list[str]) -> None:
    golds = [["1"], ["2"]]
    assert METRICS["Pearson-Correlation"](predictions, golds) == 0.0
    assert is_undefined("Pearson-Correlation", predictions, golds)
    assert not is_undefined("Pearson-Correlation", ["1", "2"], golds)


@pytest.mark.parametrize("name", METRICS)
def test_empty_predictions_of_any_length_have_a_score(name: str) -> None:
    assert METRICS[name]([], []) == 0.0
    assert METRICS[name](["", ""], [["1"], ["2"]]) <= 0.0
    assert SHORT[name]
