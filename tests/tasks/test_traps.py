"""Where fine-tuning of texts goes wrong without a word: borders, ends, cuts and pooled figures, by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from own_rows import GPT2, completer, translator, write_rows
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import DataError
from fedtorch.data.own.keys import SplitRule
from fedtorch.models.auto import AnyModel
from fedtorch.tasks.continued import Continued, Prediction
from fedtorch.tasks.text_generation import IGNORED, Generation
from fedtorch.text.byte_bpe import train_subwords

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
CHAT += "{% if add_generation_prompt %}<assistant>{% endif %}"

STRIPPING = (  # drops what earlier answers thought
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('#')[-1] if not loop.last else m.content }}</s>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("traps"))
        train_subwords(["a"], Path("letters"), size=261)  # a token a letter
        train_subwords(["ab"] * 50, Path("merging"), size=262)  # `ab` is one
        Path("chat.jinja").write_text(CHAT)
        Path("stripping.jinja").write_text(STRIPPING)
        yield


def shown(vocabulary: PreTrainedTokenizerBase, ids: list[int], is_learned: list[bool]) -> str:
    return "".join(
        vocabulary.decode([i]) if kept else "." * len(vocabulary.decode([i]))
        for i, kept in zip(ids, is_learned, strict=True)
    )


@pytest.mark.parametrize(
    ("length", "side", "expected"),
    [
        (64, "right", "." * 23 + "cd</s>" + "." * 22 + "f</s>"),
        (40, "right", "." * 23 + "cd</s>" + "." * 20),  # what is left of the second question
        (22, "right", "." * 23 + "cd"),
        (20, "left", "." * 21 + "f</s>"),
    ],
)
def test_what_is_learned_of_a_conversation_that_is_cut(length: int, side: Any, expected: str) -> None:
    """Tokens and marks are cut together: <user>ab</s><assistant>cd</s><user>e</s><assistant>f</s>."""
    turns = [("user", "ab"), ("assistant", "cd"), ("user", "e"), ("assistant", "f")]
    write_rows(Path("chat.jsonl"), [{"messages": [{"role": r, "content": c} for r, c in turns], "home": "n"}] * 8)
    settings = {"rows_are": "messages", "chat_template": Path("chat.jinja"), "tokenizer": "letters"}
    task = completer("chat.jsonl", max_length=length, truncate=side, **settings)
    (example,) = task.load("n", "train")[:1]
    found = shown(task.vocabulary, example.ids, example.is_learned)
    assert (len(example.ids), found) == (min(length, 44), expected)


def turns(number: int) -> list[dict[str, str]]:
    said = ("a", f"x#{number}", "bb", f"y#z{number}")
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


@pytest.mark.parametrize("template", ["chat", "stripping"])
def test_a_conversation_is_one_example_however_many_samples_it_is_rendered_as(template: str, tmp_path: Path) -> None:
    """More examples than the manifest has rows made the server leave its client out of every round."""
    source = write_rows(Path("think.jsonl"), [{"messages": turns(i), "home": "ns"[i % 2]} for i in range(16)])
    settings = {"rows_are": "messages", "chat_template": Path(f"{template}.jinja"), "tokenizer": "letters"}
    few = Generation(max_new_tokens=4)
    task = completer(source, measures=("exact_match",), generate=few, **settings)
    examples = task.load("n", "train")
    assert len(examples) == task.manifest()["n"]["train"]
    texts = [
        shown(task.vocabulary, one.ids, one.is_learned).replace(".", "") for one in (*examples[0].more, examples[0])
    ]
    answers = [
        turn["content"] + "</s>" for turn in task.rows("n", "train")[0]["messages"] if turn["role"] == "assistant"
    ]
    assert "".join(texts) == "".join(answers) and len(texts) == (1 if template == "chat" else 2)
    assert examples[0].learned == task.terms(task.collate(examples[:1], True)) == task.supervised(examples[0]) == 9
    assert (
        task.vocabulary.decode(examples[0].prompt).endswith("<user>bb</s><assistant>")
        and examples[0].gold == answers[1][:-4]
    )
    runner = make_runner(make_config(tmp_path, task, client=ClientConfig(lr=0.01), rounds=1))
    start = runner.components.engine.initial_shared
    result = runner.run()
    assert not torch.equal(runner.context.server.weights, start)
    total, tokens = result.scores["n"]["log_likelihood"]
    assert tokens == sum(one.learned for one in task.load("n", "test")) and total < 0


@pytest.mark.parametrize(("empty", "is_refused"), [(1, False), (2, True)])
def test_one_row_in_a_hundred_may_have_nothing_to_learn(empty: int, is_refused: bool) -> None:
    rows = [{"prompt": f"{i} " + "x" * (80 if i < empty else 1), "completion": "y", "home": "n"} for i in range(100)]
    source = write_rows(Path(f"cut{empty}.jsonl"), rows)
    task = completer(source, tokenizer="letters", data={"splits": SplitRule(0.0, 0.0)})
    if is_refused:
        with pytest.raises(DataError, match="2 of 100 rows have no token to learn"):
            task.load("n", "train")
    else:
        assert sum(not example.learned for example in task.load("n", "train")) == 1


def test_a_token_over_the_border_belongs_to_the_answer() -> None:
    """Apart, `xa` and `bx` have four tokens; together they are x, ab, x."""
    write_rows(Path("border.jsonl"), [{"prompt": "xa", "completion": "bx", "home": "n"}] * 8)
    task = completer("border.jsonl", tokenizer="merging")
    apart = [task.vocabulary(text, add_special_tokens=False).input_ids for text in ("xa", "bx")]
    example = task.load("n", "train")[0]
    assert [*apart[0], *apart[1]] != example.ids[:-1]
    assert shown(task.vocabulary, example.ids, example.is_learned) == ".abx</s>"


def test_the_end_of_a_target_is_learned_where_padding_is_the_end_too() -> None:
    rows = [{"source": "a", "target": "b" * (1 + i), "home": "n"} for i in range(8)]
    task = translator(write_rows(Path("ends.jsonl"), rows), tokenizer="letters")
    task.vocabulary.pad_token = task.vocabulary.eos_token
    examples = task.load("n", "train")
    batch, end = task.collate(examples, True), task.vocabulary.eos_token_id
    assert (batch["labels"] == end).sum(1).tolist() == [1] * len(examples)
    assert [row[row != IGNORED][-1] for row in batch["labels"]] == [end] * len(examples)
    assert batch["attention_mask"].sum(1).tolist() == [len(example.source) for example in examples]


def test_a_folders_code_runs_only_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    code = {"AutoConfig": "shape.ShapeConfig", "AutoModelForCausalLM": "shape.Shape"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "shape", "auto_map": code}))
    (tmp_path / "shape.py").write_text("raise SystemExit('it ran')")
    tokenizer = AutoTokenizer.from_pretrained("letters")
    with pytest.raises(SystemExit, match="it ran"):
        AnyModel.of({"path": str(tmp_path), "allow_code": True}).build("CausalLM", 0, tokenizer)


@pytest.mark.parametrize("clients", [1, 3, 20])
def test_figures_of_texts_equal_the_libraries_own_however_rows_are_dealt(clients: int) -> None:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU, CHRF

    golds = [f"the {i} red and green blue words {i % 3} of it" for i in range(24)]
    found = [gold.replace("green", "grey").replace("it", "all") if i % 2 else gold for i, gold in enumerate(golds)]
    measures = ("exact_match", "rouge_l", "bleu", "chrf")
    task = translator("ends.jsonl", measures=measures)
    scores = {f"c{part}": task.text_scores(found[part::clients], golds[part::clients]) for part in range(clients)}
    pooled = task.summary(scores)["pooled"]
    assert pooled["bleu"] == pytest.approx(BLEU().corpus_score(found, [golds]).score, abs=1e-9)
    assert pooled["chrf"] == pytest.approx(CHRF().corpus_score(found, [golds]).score, abs=1e-9)
    means = {name: sum(score[name][0] for score in scores.values()) / 24 for name in measures[:2]}
    scorer = RougeScorer(["rougeL"])
    rouge = sum(scorer.score(gold, text)["rougeL"].fmeasure for gold, text in zip(golds, found, strict=True)) / 24
    assert means == pytest.approx({"exact_match": 0.5, "rouge_l": rouge}, abs=1e-12)


@pytest.mark.parametrize("clients", [1, 3, 20])
def test_perplexity_and_choices_are_pooled_however_rows_are_dealt(clients: int) -> None:
    task = completer("border.jsonl", rows_are="choices", model=GPT2)
    predictions = [Prediction(-0.5 * i, 1 + i % 4, i % 2) for i in range(24)]
    examples = [Continued([], [], [], "", right=i % 3) for i in range(24)]
    scores = {f"c{p}": task.score(examples[p::clients], predictions[p::clients]) for p in range(clients)}
    nll, tokens = sum(0.5 * i for i in range(24)), sum(1 + i % 4 for i in range(24))
    assert task.summary(scores)["pooled"]["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-12)
    assert sum(score["accuracy"][0] for score in scores.values()) == sum(i % 2 == i % 3 for i in range(24))
    assert sum(score["accuracy"][1] for score in scores.values()) == 24
