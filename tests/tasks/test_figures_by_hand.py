"""Figures of labels, of metrics of one's own and of new rows, each from numbers that a reader can redo."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from own_rows import BY_HOME, classifier, tagger, weather, write_rows

from fedtorch.core.errors import ConfigError
from fedtorch.metrics.chosen import spearman
from fedtorch.tasks.base import Scores
from fedtorch.tasks.chosen_metrics import code_of, pooled, pooled_of, scores_of, selectable
from fedtorch.tasks.label_figures import known_metrics, label_figures
from fedtorch.tasks.new_answers import new_answers

# of three rows with labels 0, 0, 1 that were taken for 0, 1, 1
COUNTS = {
    "accuracy": 2.0,
    "count/0/hits": 1.0,
    "count/0/predicted": 1.0,
    "count/0/true": 2.0,
    "count/1/hits": 1.0,
    "count/1/predicted": 2.0,
    "count/1/true": 1.0,
}


def test_f1_and_matthews_from_counts() -> None:
    found = label_figures("single_label", 3, COUNTS)
    assert found == {
        "f1_macro": pytest.approx(2 / 3),  # 2/3 for either label; the third never occurs
        "f1_micro": pytest.approx(2 / 3),
        "matthews": pytest.approx((2 * 3 - (1 * 2 + 2 * 1)) / math.sqrt((9 - 5) * (9 - 5))),
    }
    several = label_figures("multi_label", 3, COUNTS)
    assert several == {"f1_macro": pytest.approx(4 / 9), "f1_micro": pytest.approx(2 / 3)}  # all labels count


def test_errors_and_pearson_from_sums() -> None:
    # (1, 2), (2, 3), (3, 4): on a line, each one too much; about the mean 2 the true ones have squares 1, 0 and 1
    moments = {"n": 3.0, "x": 6.0, "y": 9.0, "xx": 14.0, "yy": 29.0, "xy": 20.0, "absolute": 3.0, "squared": 3.0}
    totals = {f"count/{name}": value for name, value in moments.items()} | {"negative_squared_error": -3.0}
    assert label_figures("regression", 0, totals) == {
        "rmse": 1.0,
        "mae": 1.0,
        "r2": pytest.approx(1 - 3 / 2),
        "pearson": pytest.approx(1.0),
    }


def test_errors_and_correlations_are_for_numbers_and_matthews_for_one_label() -> None:
    assert known_metrics("single_label") == {
        "accuracy": "accuracy",
        "macro_f1": "f1_macro",
        "micro_f1": "f1_micro",
        "matthews": "matthews",
    }
    assert set(known_metrics("multi_label")) == {"accuracy", "macro_f1", "micro_f1"}
    assert known_metrics("regression") == {
        "pearson": "pearson",
        "spearman": spearman,
        "rmse": "rmse",
        "mae": "mae",
        "r2": "r2",
        "negative_squared_error": "negative_squared_error",
    }


def test_sums_of_clients_are_added() -> None:
    assert pooled({"a": {"x": (2.0, 3)}, "b": {"x": (3.0, 4), "y": (1.0, 1)}}) == {"x": 5.0, "y": 1.0}


class Recall:
    """Sums that are added over clients."""

    def sums(self, predictions: Sequence[str], references: Sequence[str]) -> list[float]:
        """Hits, and what was to be found."""
        hits = sum(found == true == "good" for found, true in zip(predictions, references, strict=True))
        return [float(hits), float(list(references).count("good"))]

    def score(self, sums: Sequence[float]) -> float:
        """Their quotient; not a number where nothing was to be found."""
        return sums[0] / sums[1] if sums[1] else math.nan


def right(predictions: Sequence[str], references: Sequence[str]) -> float:
    return sum(map(str.__eq__, predictions, references)) / len(references)


def fails(predictions: Sequence[str], references: Sequence[str]) -> float:
    raise KeyError(predictions[0])


def f1(totals: Mapping[str, float]) -> dict[str, float]:
    return {"f1": totals["hits"] / 10}


CHOSEN: dict[str, Any] = {
    "accuracy": "accuracy",
    "span_f1": "f1",
    "mine": "accuracy",
    "recall": Recall(),
    "right": right,
}
PREDICTED, TRUE = ["good", "bad", "good", "bad"], ["good", "good", "bad", "bad"]
SCORES: Scores = {"hits": (5.0, 4), "accuracy": (2.0, 4)}


def test_a_clients_figures_are_weighed_by_its_rows() -> None:
    assert scores_of(CHOSEN, "a", SCORES, PREDICTED, TRUE, f1) == {
        "span_f1": (0.5 * 4, 4),  # a figure of the task's
        "mine": (2.0, 4),  # a score under another name; under its own it is there already
        "recall": (0.5 * 4, 4),
        "count/recall/0": (1.0, 4),
        "count/recall/1": (2.0, 4),
        "right": (0.5 * 4, 4),
    }


def test_a_metric_that_fails_or_gives_no_number_has_no_score(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = scores_of({"f": fails, "recall": Recall()}, "somebody", {}, ["bad"], ["bad"], lambda totals: {})
    assert found == {"count/recall/0": (0.0, 1), "count/recall/1": (0.0, 1)}  # which the others' are added to
    said = "the metric f failed for client somebody: KeyError; it has no score there, training goes on"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_figures_of_all_rows_are_made_of_the_sums_of_all_clients() -> None:
    other = scores_of({"recall": Recall()}, "b", {}, ["good"], ["good"], lambda totals: {})
    one = scores_of({"recall": Recall()}, "a", {}, PREDICTED, TRUE, lambda totals: {})
    chosen = {name: CHOSEN[name] for name in ("span_f1", "mine", "recall", "right")}
    scores: dict[str, Scores] = {"a": {**SCORES, **one}, "b": {"hits": (1.0, 1), **other}, "c": {}}
    assert pooled_of(chosen, scores, f1) == {"span_f1": 0.6, "recall": 2 / 3}
    assert pooled_of({"recall": Recall()}, {"a": one}, lambda totals: {}) == {"recall": 0.5}
    assert pooled_of({"recall": Recall()}, {"a": {}}, lambda totals: {}) == {}
    uneven: dict[str, Scores] = {"a": one, "b": {"count/recall/0": (1.0, 1)}}
    with pytest.raises(ConfigError, match="`recall` of eval.metrics gave one client 1 sums and another 2"):
        pooled_of({"recall": Recall()}, uneven, lambda totals: {})


class Error(Recall):
    """Less is better."""

    higher_is_better = False


def test_nothing_of_which_less_is_better_chooses_a_model_and_code_from_outside_has_a_digest() -> None:
    chosen = {"perplexity": "perplexity", "error": Error(), "recall": Recall(), "right": right}
    assert selectable(chosen, ("perplexity",)) == ["recall", "right"]
    assert code_of({"a": "accuracy"}) == ""
    found = code_of({"a": "accuracy", "recall": Recall()})
    assert len(found) == 16 and found != code_of({"other": Recall()}) and found == code_of({"recall": Error()})


def test_a_task_that_is_asked_for_no_metrics_is_itself_and_else_a_copy(tmp_path: Path) -> None:
    task = classifier(write_rows(tmp_path / "rows.jsonl", weather(12)), data={"clients": BY_HOME})
    assert task.with_metrics({}) is task
    asked = task.with_metrics({"recall": Recall()})
    assert asked is not task and "recall" in asked.metrics() and "recall" not in task.metrics()
    assert task.takes_metrics and tagger(str(tmp_path / "rows.jsonl")).takes_metrics


class Row:
    """A tokenised row, all of whose tokens are learned."""

    def __init__(self, learned: int, choices: Sequence[Any] = ()) -> None:
        self.learned, self.choices, self.more = learned, list(choices), []
        self.ids = [0] * learned


class Tokens:
    """A token for each character."""

    def sample(self, row: Mapping[str, Any], where: str) -> Row:
        """With its choices, if there are any."""
        choices = [Row(len(text)) for text in row.get("choices", ())]
        return Row(len(row["completion"]), choices)


class Words:
    """A vocabulary that notes how it is called."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        """Characters; with special tokens one more in front."""
        ids = [ord(char) for char in text]

        class Found:
            input_ids = [0, *ids] if add_special_tokens else ids

        return Found()


class Decoder:
    """What `new_answers` needs of a task."""

    max_length = 8
    tokens: Any = Tokens()
    vocabulary: Any = Words()

    def cut(self, ids: Sequence[int], most: int, where: str) -> list[int]:
        """The beginning."""
        return list(ids[:most])

    def continued(self, model: Any, prompts: Sequence[Sequence[int]], batch_size: int) -> list[str]:
        """The prompts."""
        return ["".join(map(chr, prompt)) for prompt in prompts]

    def collate(self, examples: Sequence[Any], train: bool) -> dict[str, Any]:
        """Never asked."""
        raise NotImplementedError


@pytest.fixture
def per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token has the log-likelihood −0.5."""
    monkeypatch.setattr(
        "fedtorch.tasks.new_answers.log_likelihoods",
        lambda model, texts, batch_size, collate: [-0.5 * text.learned for text in texts],
    )


@pytest.mark.usefixtures("per_token")
def test_what_is_said_of_new_rows_follows_from_their_form() -> None:
    task, model = Decoder(), Any
    assert new_answers(task, model, [{"source": "weather", "where": "r:1"}], 2) == [{"text": "weather"}]
    chosen = new_answers(task, model, [{"prompt": "p", "choices": ["long", "no"], "where": "r:1"}], 2)
    assert chosen == [{"choice": "no", "number": 1, "log_likelihoods": [-2.0, -1.0]}]
    one, none = {"prompt": "p", "completion": "abcd", "where": "r:1"}, {"prompt": "p", "completion": "", "where": "r:2"}
    found = new_answers(task, model, [one, none], 2)
    likely = {"perplexity": pytest.approx(math.exp(0.5)), "log_likelihood": -2.0, "tokens": 4}
    assert found == [likely, {"perplexity": None, "log_likelihood": 0.0, "tokens": 0}]
    assert new_answers(task, model, [{**one, "choices": ["abcd", "e"]}], 2) == [likely]  # the answer is there
