"""`fedtorch predict` for words, texts and their perplexity: on the test rows it gives the figures of results.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import BERT, names, write_rows

from fedtorch.cli.__main__ import main
from fedtorch.config.load import load

GPT2 = {"random": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 48}
T5 = {"random": "t5", "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<assistant>{% endif %}"
COLOURS = ("red", "blue")


def asked(i: int) -> str:
    return f"{COLOURS[i * i % 3 % 2]} sign {i}"


SPANS = [
    {"text": f"{i} anna saw york", "spans": [{"start": len(f"{i} "), "end": len(f"{i} anna"), "label": "PER"}]}
    for i in range(24)
]
PAIRS = [{"source": asked(i), "target": asked(i).split()[0]} for i in range(40)]
PROMPTS = [{"prompt": f"{asked(i)} :", "completion": f" {asked(i).split()[0]}"} for i in range(40)]
CHATS = [
    {"messages": [{"role": "user", "content": asked(i)}, {"role": "assistant", "content": asked(i).split()[0]}]}
    for i in range(40)
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(
    rows: Sequence[Mapping[str, Any]], task: dict[str, Any], epochs: int = 3, **keys: Any
) -> tuple[Any, dict[str, Any]]:
    """(the task, results.json) of a run over `rows`, whose test rows are then in new.jsonl as they were in the file."""
    write_rows(Path("rows.jsonl"), [{**row, "n": str(i)} for i, row in enumerate(rows)])
    data = {"source": "rows.jsonl", "clients": {"iid": 2}, "splits": {"dev": 0.1, "test": 0.3}, "tokenizer_size": 300}
    config = {
        "run": {"name": "run", "dir": "run"},
        "task": {"data": {**data, "id": "n"}, "max_length": 32, **task},
        "rounds": 1,
        "client": {"lr": 0.01, "batch_size": 4, "epochs": epochs},
        "track": {"tensorboard": False, "progress": "off"},
        **keys,
    }
    Path("run.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "--config", "run.yaml"]) == 0
    found = load("run.yaml").task
    held = [row for client in found.manifest() for row in found.rows(client, "test")]
    keys = [json.dumps(row, sort_keys=True) for row in held]
    converted = [json.dumps(found.form().convert(row), sort_keys=True) for row in rows]
    write_rows(Path("new.jsonl"), [rows[converted.index(key)] for key in keys])
    Path("rows.jsonl").unlink()
    return found, json.loads(Path("run/results.json").read_text())


def predicted(*options: str) -> list[dict[str, Any]]:
    assert main(["predict", "run", "new.jsonl", "--out", "answers.jsonl", *options]) == 0
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [answer.pop("row") for answer in answers] == list(range(1, len(answers) + 1))
    return answers


def new() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("new.jsonl").read_text().splitlines()]


def test_tags_of_words_have_the_accuracy_that_was_measured() -> None:
    rows = [{key: row[key] for key in ("tokens", "tags")} for row in names()]
    _, results = trained(rows, {"name": "token_classification", "model": BERT}, epochs=1)
    gold = [row["tags"] for row in new()]
    answers = predicted()
    pairs = [pair for row, answer in zip(gold, answers, strict=True) for pair in zip(row, answer["tags"], strict=True)]
    evaluated = results["averages"]["accuracy"]
    assert (sum(a == b for a, b in pairs) / len(pairs), len(pairs)) == (evaluated["micro"], evaluated["count"])
    assert 0 < evaluated["micro"] < 1


def test_spans_of_a_text_are_characters_of_it() -> None:
    _, results = trained(SPANS, {"name": "token_classification", "model": BERT, "annotation": "spans"}, epochs=6)
    found = {(i, *s.values()) for i, answer in enumerate(predicted()) for s in answer["spans"]}
    true = {(i, *s.values()) for i, row in enumerate(new()) for s in row["spans"]}
    assert found and results["summary"]["pooled"]["f1"] == 2 * len(found & true) / (len(found) + len(true))


def test_generated_texts_have_the_score_that_was_measured() -> None:
    _, results = trained(PAIRS, {"name": "seq2seq", "model": T5, "generate": {"max_new_tokens": 4}}, epochs=6)
    gold = [row["target"] for row in new()]
    hits = sum(answer["text"] == text for answer, text in zip(predicted(), gold, strict=True))
    assert 0 < hits / len(gold) == results["averages"]["exact_match"]["micro"]


@pytest.mark.long
@pytest.mark.parametrize("rows", [PROMPTS, CHATS], ids=["prompts", "messages"])
def test_continuations_and_perplexity_are_those_that_were_measured(rows: list[dict[str, Any]]) -> None:
    Path("chat.jinja").write_text(TEMPLATE)
    form = {"rows_are": "messages", "chat_template": "chat.jinja"} if "messages" in rows[0] else {}
    task = {"name": "causal_lm", "model": GPT2, "measures": ["exact_match"], "generate": {"max_new_tokens": 4}, **form}
    _, results = trained(rows, task, epochs=12)
    Path("chat.jinja").unlink()  # it lies beside the model
    gold = [row["messages"][-1]["content"] if "messages" in row else row["completion"] for row in new()]
    likely = predicted("--perplexity")
    pooled = math.exp(-sum(row["log_likelihood"] for row in likely) / sum(row["tokens"] for row in likely))
    assert pooled == pytest.approx(results["summary"]["pooled"]["perplexity"], rel=1e-6)
    for row in likely:
        assert row["perplexity"] == pytest.approx(math.exp(-row["log_likelihood"] / row["tokens"]))
    hits = sum(answer["text"].strip() == text.strip() for answer, text in zip(predicted(), gold, strict=True))
    assert 0 < hits / len(gold) == results["averages"]["exact_match"]["micro"]
    texts = predicted()
    unanswered = [
        {"messages": row["messages"][:1]} if "messages" in row else {"prompt": row["prompt"]} for row in new()
    ]
    write_rows(Path("new.jsonl"), unanswered)
    assert predicted() == texts


@pytest.mark.parametrize("precision", ["fp32", "bf16"])  # a model is asked in the numbers that it was evaluated in
def test_plain_texts_have_a_perplexity(precision: str) -> None:
    task = {"name": "causal_lm", "model": GPT2, "rows_are": "text"}
    _, results = trained([{"text": asked(i)} for i in range(40)], task, engine={"precision": precision})
    answers = predicted()
    pooled = math.exp(-sum(row["log_likelihood"] for row in answers) / sum(row["tokens"] for row in answers))
    assert pooled == pytest.approx(results["summary"]["pooled"]["perplexity"], rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "task", "line", "said"),
    [
        (PAIRS, {"name": "seq2seq", "model": T5}, '{"source": 3}', "new.jsonl:2: `source` is a int, expected a str"),
        (PAIRS, {"name": "seq2seq", "model": T5}, '{"source": ""}', "new.jsonl:2: `source` is missing or empty"),
        (
            names(),
            {"name": "token_classification", "model": BERT},
            '{"tokens": "a b"}',
            "new.jsonl:2: `tokens` is a str, expected a list of strings",
        ),
        (
            CHATS,
            {
                "name": "causal_lm",
                "model": GPT2,
                "rows_are": "messages",
                "chat_template": "chat.jinja",
                "generate": {"max_new_tokens": 4},
            },
            '{"messages": [{"role": "narrator", "content": "a"}]}',
            "new.jsonl:2: the tokenizer's chat template refuses a row's messages (TemplateError)",
        ),
        (
            PAIRS,
            {"name": "seq2seq", "model": T5, "truncate": "refuse"},
            json.dumps({"source": "red " * 99}),
            "new.jsonl:2 has a row of ",
        ),
    ],
)
def test_a_row_that_cannot_be_answered_is_named(
    rows: list[dict[str, Any]], task: dict[str, Any], line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = "{% if m.role == 'narrator' %}{{ raise_exception(m.content) }}{% endif %}"
    Path("chat.jinja").write_text(TEMPLATE.replace("<{{ m.role }}>", refusing + "<{{ m.role }}>"))
    write_rows(Path("rows.jsonl"), rows)
    data = {"source": "rows.jsonl", "clients": {"iid": 2}, "tokenizer_size": 300}
    Path("run").mkdir()
    Path("run/config.yaml").write_text(yaml.safe_dump({"task": {"data": data, "max_length": 32, **task}}))
    found = load("run/config.yaml").task
    found.save_model(found.build_model(0), Path("run/model"))
    first = {role: value for role, value in rows[0].items() if role in found.new_form().required}
    Path("new.jsonl").write_text(f"{json.dumps(first)}\n{line}\n{json.dumps(first)}\n")
    assert main(["predict", "run", "new.jsonl", "--out", "answers.jsonl", "--strict"]) == 3
    assert said in capsys.readouterr().err
    before, wrong, after = (json.loads(line) for line in Path("answers.jsonl").read_text().splitlines())
    assert wrong["error"].startswith(said) and "error" not in before and before | {"row": 3} == after
    if task["name"] == "causal_lm":
        return
    assert main(["predict", "run", "new.jsonl", "--perplexity"]) == 2
    assert f"the run's task.name is {task['name']}; it is for causal_lm" in capsys.readouterr().err
