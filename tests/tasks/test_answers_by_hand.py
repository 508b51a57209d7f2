"""Scores, answers and lengths of the tasks over one's own texts, of numbers and words that a reader can redo."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from own_rows import classifier, tagger, translator

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.tasks import text_generation
from fedtorch.tasks.long_texts import Window
from fedtorch.tasks.seq2seq import Seq2Seq
from fedtorch.tasks.text_classification import Example as Text
from fedtorch.tasks.word_tokens import Example as Words

SOURCE = "rows.jsonl"
"""Which need not be there."""


def with_words(task: Any, **members: Any) -> Any:
    """The task with a vocabulary of characters, each of which is its own number; 1 ends a text."""

    class Vocabulary:
        pad_token_id, eos_token_id = 0, 1

        def __call__(self, texts: list[str] | None = None, *, text_target: list[str] | None = None) -> Any:
            found = [[*map(ord, text), *([1] if text else [])] for text in texts or text_target or []]
            return SimpleNamespace(input_ids=found)

        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            return "".join(chr(one) for one in ids if one > 1)

    task.__dict__.update({"vocabulary": Vocabulary(), **members})
    return task


def test_a_text_has_its_windows_and_its_target() -> None:
    windows = [Window([1, 2], None), Window([3], None)]
    example = Text.of(windows, 4)
    assert (example.ids, example.types, example.target, list(example.more)) == ([1, 2], None, 4, [windows[1]])
    assert example.windows == windows


def test_answers_of_a_classifier_have_probabilities_of_six_digits() -> None:
    one = classifier(SOURCE, data={"labels": ("bad", "good")})
    assert one._answer(torch.tensor([0.0, 1.0])) == {
        "label": "good",
        "probabilities": {"bad": 0.268941, "good": 0.731059},
    }
    several = classifier(SOURCE, data={"labels": ("bad", "good")}, problem="multi_label")
    assert several._answer(torch.tensor([0.5, -1.0])) == {
        "labels": ["bad"],
        "probabilities": {"bad": 0.622459, "good": 0.268941},
    }
    assert classifier(SOURCE, problem="regression")._answer(torch.tensor([0.25])) == {"value": 0.25}


def test_scores_of_a_classifier_by_hand() -> None:
    numbers = classifier(SOURCE, problem="regression")
    found = numbers.score([Text([1], None, 1.0), Text([1], None, 2.0)], [1.5, 4.0])
    sums = {"n": 2.0, "x": 3.0, "y": 5.5, "xx": 5.0, "yy": 18.25, "xy": 9.5, "absolute": 2.5, "squared": 4.25}
    assert found == {"negative_squared_error": (-4.25, 2)} | {f"count/{name}": (one, 2) for name, one in sums.items()}
    one = classifier(SOURCE, data={"labels": ("bad", "good")})
    found = one.score([Text([1], None, 0), Text([1], None, 1)], [1, 1])
    assert found == {
        "accuracy": (1.0, 2),
        "count/0/true": (1.0, 2),
        "count/1/hits": (1.0, 2),
        "count/1/predicted": (2.0, 2),
        "count/1/true": (1.0, 2),
    }


@pytest.mark.parametrize(
    ("problem", "targets", "loss", "terms"),
    [
        ("regression", [2.0, 4.0], 1.5**2 + 4.0**2, 2),
        ("multi_label", [[1.0, 0.0], [1.0, 1.0]], math.log1p(math.exp(-0.5)) + 3 * math.log(2), 4),
        ("single_label", [1, 0], math.log1p(math.exp(0.5)) + math.log(2), 2),
    ],
)
def test_losses_of_a_classifier_by_hand(problem: str, targets: list[Any], loss: float, terms: int) -> None:
    task: Any = classifier(SOURCE, problem=problem, data={"labels": () if problem == "regression" else ("bad", "good")})
    task.__dict__.update(logits=lambda model, batch: torch.tensor([[0.5, 0.0], [0.0, 0.0]]), label_weights=None)
    found, count = task.loss(None, {"targets": torch.tensor(targets)})
    assert (found.item(), count) == (pytest.approx(loss), terms)


def test_what_rows_of_a_label_weigh() -> None:
    labels: dict[str, Any] = {"data": {"labels": ("bad", "good", "none")}}
    assert classifier(SOURCE, **labels).label_weights is None
    given = classifier(SOURCE, class_weights={"good": 2.0}, **labels)
    assert given.label_weights.tolist() == [1.0, 2.0, 1.0]
    clients = {"a": {"labels": {"bad": 1}}, "b": {"labels": {"bad": 2, "good": 6}}}
    balanced = classifier(SOURCE, class_weights="balanced", **labels)
    balanced.__dict__["prepared"] = {"clients": clients}
    assert balanced.label_weights.tolist() == [1.0, 0.5, 0.0]  # 9 / (3 · 3), 9 / (3 · 6), of nobody


def test_tags_of_words_and_what_is_cut_away() -> None:
    task = with_words(tagger(SOURCE, data={"labels": ("PER",)}))
    assert task.labels == ("PER",) and task.tags == ("O", "B-PER", "I-PER")
    example = Words([5, 6, 7], [1, 2, -1], [1, 2, 0])
    batch = task.collate([example], False)
    assert batch["targets"].tolist() == [[-100, 1, 2]] and task.supervised(example) == 2
    score = task.score([example], [[1, 0, 0]])
    assert score["f1"] == (0.0, 2) and score["accuracy"] == (2.0, 3)  # found anna alone, not anna b
    found: list[Words] = []
    task.__dict__.update(manifest=lambda: {"a": {"train": 1}}, load=lambda client, split: found)
    assert task.check("a") is None
    found.append(Words([5, 6], [0, 1], [0, 0]))
    assert task.check("a") is None  # the first token stands for a word too
    found.append(example)
    assert task.check("a") == "1 of 5 words lie beyond task.max_length 64; they count as predicted O"


def test_labels_are_those_of_the_rows_where_none_are_declared() -> None:
    for make in (classifier, tagger):
        task = make(SOURCE)
        task.__dict__["prepared"] = {"clients": {"a": {"labels": {"x": 1}}, "b": {"labels": {"a": 0}}, "c": {}}}
        assert task.labels == ("a", "x")
    nothing = tagger(SOURCE)
    nothing.__dict__["prepared"] = {"clients": {"a": {}}}
    with pytest.raises(DataError, match="has a span, so there is nothing to learn"):
        _ = nothing.labels


def test_sources_and_targets_end_as_texts_do_also_where_they_are_cut() -> None:
    task = with_words(translator(SOURCE, max_length=4, max_target_length=3))
    rows = [{"source": "abcd", "target": "xyz"}, {"source": "abc", "target": "xy"}, {"source": "", "target": "x"}]
    found = task.examples(rows, "here")
    a, x = ord("a"), ord("x")
    assert [example.source for example in found] == [[a, a + 1, a + 2, 1], [a, a + 1, a + 2, 1], [1]]
    assert [example.target for example in found] == [[x, x + 1, 1], [x, x + 1, 1], [x, 1]]
    assert task.example_lengths(found) == [(4, 3), (4, 3), (1, 2)] and task.longest == (4, 3)
    batch = task.collate(found, True)
    assert batch["attention_mask"].sum(1).tolist() == [4, 4, 1] and task.terms(batch) == 8


def test_new_tokens_are_what_follows_the_start_of_an_encoder_decoder_or_the_prompt_of_a_decoder() -> None:
    class Model(torch.nn.Module):
        """Continues with 7, 8 and the end."""

        def __init__(self, is_decoder: bool) -> None:
            super().__init__()
            self.weight, self.is_decoder = torch.nn.Parameter(torch.zeros(1)), is_decoder
            self.sides: list[list[list[int]]] = []

        def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **settings: Any) -> torch.Tensor:
            """After the prompt, or a start."""
            self.sides.append(attention_mask.tolist())
            assert settings["max_new_tokens"] == 8 and not settings["do_sample"]
            before = input_ids if self.is_decoder else torch.zeros(len(input_ids), 1, dtype=torch.long)
            return torch.cat([before, torch.tensor([[7, 8, 1, 0]] * len(input_ids))], 1)

    task = with_words(translator(SOURCE))
    for left in (True, False):
        model: Any = Model(left)
        assert task.generated(model, [[5, 5], [6]], 2, left=left) == [[7, 8], [7, 8]]
        assert model.sides == [[[1, 1], [0, 1] if left else [1, 0]]]
    model = Model(False)
    assert task._texts(model, [[5, 5], [6]], 2) == ["\x07\x08"] * 2 and model.sides == [[[1, 1], [1, 0]]]


def test_a_text_is_read_by_its_template_and_the_last_column_is_the_answer() -> None:
    values = {"city": "Rome", "day": "today", "answer": "sun"}
    form = text_generation.Texts(("city", "day", "answer"), "{day} in {city}?")
    assert form.convert(values) == {"source": "today in Rome?", "target": "sun"}
    assert text_generation.Texts(("city", "answer"), None).convert(values) == {"source": "Rome", "target": "sun"}


def test_templates_name_columns_and_metrics_need_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert translator(SOURCE).template_columns() == []
    assert translator(SOURCE, template="{a}: {b} {a}").template_columns() == ["a", "b"]
    for template, why in (("{a", "task.template is no template"), ("{0}", "task.template names '0'")):
        with pytest.raises(ConfigError, match=why):
            translator(SOURCE, template=template)
    needed: list[str] = []
    monkeypatch.setattr(text_generation, "require", lambda what, package, *, extra: needed.append(package))
    assert translator(SOURCE, measures=("exact_match", "rouge_1")).means() == ("exact_match", "rouge_1")
    assert needed == ["rouge_score"]
    assert translator(SOURCE, measures=("bleu",)).means() == () and needed == ["rouge_score", "sacrebleu"]
    assert isinstance(translator(SOURCE), Seq2Seq) and Path(SOURCE).name == SOURCE
