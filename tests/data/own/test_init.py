"""`fedtorch init`: what is guessed of a file, and that the config it writes is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError
from fedtorch.data.own.columns import Column
from fedtorch.data.own.first_config import Settings, quoted
from fedtorch.data.own.guess import guess
from fedtorch.data.own.guessed import LABEL_NAMES, Guess, Wishes, by_name
from fedtorch.data.own.model_kind import ModelKind
from fedtorch.data.own.source import Table
from fedtorch.data.own.text_form import TextForm
from fedtorch.setup.init import main, write

WORDS = "scan fever lung mass history report grave mild severe benign".split()
Maker = Callable[[int], Any]


def text(i: int) -> str:
    return " ".join(WORDS[(i * k) % 10] for k in range(1, 8)) + f" {i}"


def rows(number: int = 60, **columns: Maker) -> list[dict[str, Any]]:
    return [{name: make(i) for name, make in columns.items()} for i in range(number)]


def guessed(found: list[dict[str, Any]], **said: str) -> Guess:
    return guess([Table(Dataset.from_list(found), "a.jsonl", "a", "")], Wishes(**said))


@pytest.mark.parametrize(
    ("columns", "task", "roles"),
    [
        (
            {"note": text, "diagnosis": lambda i: "ab"[i % 2], "hospital": lambda i: f"h{i % 3}"},
            "text_classification",
            {"text": "note", "label": "diagnosis"},
        ),
        # the label is not called so, and comes first; a number is one too
        ({"kind": lambda i: i % 3, "body": text}, "text_classification", {"text": "body", "label": "kind"}),
        (
            {"premise": text, "hypothesis": text, "label": lambda i: i % 3},
            "text_classification",
            {"text": "premise", "text_pair": "hypothesis", "label": "label"},
        ),
        (
            {"text": text, "labels": lambda i: ["x", "y"][: 1 + i % 2]},
            "text_classification",
            {"text": "text", "label": "labels"},
        ),
        ({"text": text, "score": lambda i: i / 7}, "text_classification", {"text": "text", "label": "score"}),
        ({"text": text, "score": lambda i: str(i / 7)}, "text_classification", {"text": "text", "label": "score"}),
        (
            {"tokens": lambda i: text(i).split(), "ner_tags": lambda i: ["O"] * 8},
            "token_classification",
            {"tokens": "tokens", "tags": "ner_tags"},
        ),
        ({"Prompt": text, "Completion": text}, "causal_lm", {"prompt": "Prompt", "completion": "Completion"}),
        (
            {"prompt": text, "completion": text, "category": lambda i: "ab"[i % 2]},
            "causal_lm",
            {"prompt": "prompt", "completion": "completion"},
        ),
        (
            {"question": text, "choices": lambda i: ["a", f"b{i}"], "answer": lambda i: i % 2},
            "causal_lm",
            {"prompt": "question", "choices": "choices", "completion": "answer"},
        ),
        ({"source": text, "target": text}, "seq2seq", {"source": "source", "target": "target"}),
        (
            {"messages": lambda i: [{"role": "user", "content": text(i)}], "label": lambda i: i % 2},
            "causal_lm",
            {"messages": "messages"},
        ),
        ({"text": text}, "causal_lm", {"text": "text"}),
        ({"text": text, "hospital": lambda i: f"h{i % 2}"}, "causal_lm", {"text": "text"}),
    ],
)
def test_the_task_follows_from_the_columns(columns: Mapping[str, Maker], task: str, roles: dict[str, str]) -> None:
    found = guessed(rows(**columns))
    assert (found.task, found.roles) == (task, roles)


def test_lists_that_differ_in_length_are_no_tags() -> None:
    found = guessed(rows(tokens=lambda i: ["a"] * 3, tags=lambda i: ["O", "B", "I"][: 2 + i % 2], text=text))
    assert found.task == "text_classification" and found.problem == "multi_label"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda i: "ab"[i % 2], "single_label"),
        (lambda i: ["a", "b"][: 1 + i % 2], "multi_label"),
        (lambda i: i / 3, "regression"),
    ],
)
def test_the_problem_follows_from_the_labels(make: Maker, problem: str) -> None:
    assert guessed(rows(text=text, label=make)).problem == problem


@pytest.mark.parametrize(
    ("columns", "by", "number"),
    [
        ({"hospital": lambda i: f"h{i % 4}"}, "hospital", 4),
        ({"hospitalId": lambda i: i % 4}, "hospitalId", 4),
        ({"user": lambda i: f"u{i % 20}", "client": lambda i: f"c{i % 2}"}, "client", 2),
        ({"user_id": lambda i: f"u{i}"}, None, 6),  # a client with one row trains nothing
        ({"site": lambda i: "one"}, None, 6),
        ({"site": lambda i: ["north", "NORTH"][i % 2]}, None, 6),  # training refuses such names
        ({"colour": lambda i: ["red", "blue"][i % 2]}, None, 6),
    ],
)
def test_clients_are_in_a_column_that_is_called_so(columns: Mapping[str, Maker], by: str | None, number: int) -> None:
    found = guessed(rows(text=text, label=lambda i: i % 2, **columns))
    assert (found.by, found.clients, found.iid) == (by, number, 0 if by else number)


def test_all_of_a_sorted_file_is_looked_at() -> None:
    found = guessed(rows(20_000, text=text, label=lambda i: "ab"[i // 10_000], site=lambda i: f"s{i // 5_000}"))
    assert (found.labels, found.clients, found.rows) == (["a", "b"], 4, 20_000)


def test_rows_in_turn_are_not_all_of_one_label() -> None:
    """Every fourth of these would be."""
    found = guessed(rows(20_000, text=text, label=lambda i: "ab"[i % 2], site=lambda i: f"s{i % 4}"))
    assert (found.roles.get("label"), found.labels, found.clients) == ("label", ["a", "b"], 4)


def test_ids_and_splits_are_found_where_they_can_be_none_else() -> None:
    named = {"id": lambda i: f"r{i}", "split": lambda i: ["train", "train", "validation", "test"][i % 4]}
    found = guessed(rows(text=text, label=lambda i: i % 2, **named))
    assert (found.id, found.split) == ("id", "split")
    odd = {"id": lambda i: f"r{i // 2}", "split": lambda i: ["left", "right"][i % 2]}
    found = guessed(rows(text=text, label=lambda i: i % 2, **odd))
    assert (found.id, found.split) == (None, None)


@pytest.mark.parametrize(
    ("columns", "kind", "task"),
    [
        ("prompt completion", "t5", "seq2seq"),
        ("source target", "gpt2", "causal_lm"),
        ("source target", "t5", "seq2seq"),
        ("prompt completion", "gpt2", "causal_lm"),
    ],
)
def test_a_model_that_is_given_decides_between_the_two_that_generate(columns: str, kind: str, task: str) -> None:
    found = guessed(rows(**dict.fromkeys(columns.split(), text)))
    generates = {"t5": "seq2seq", "gpt2": "causal_lm"}[kind]
    ModelKind(kind, frozenset({"text_classification", generates})).fit(found, None)
    assert found.task == task and len(found.roles) == 2


def test_a_model_that_cannot_do_the_task_is_refused() -> None:
    found = guessed(rows(prompt=text, completion=text))
    with pytest.raises(ConfigError, match=r"--model is a bert, which cannot do causal_lm, what the columns `prompt`, "):
        ModelKind("bert", frozenset({"text_classification"})).fit(found, None)


@pytest.mark.parametrize("name", ["plain", "a b", "yes", "No", "1", "it: is", "#x", "ä", "a'b\"c", "- x", ""])
def test_a_name_in_the_config_is_read_back_as_it_is(name: str) -> None:
    assert yaml.safe_load(f"{{x: {quoted(name)}}}") == {"x": name}


def notes(folder: Path, number: int = 40) -> str:
    found = rows(number, note=text, diagnosis=lambda i: "ab"[i % 2], hospital=lambda i: f"h{i % 3}")
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return "notes.jsonl"


def test_what_is_written_is_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = write(notes(tmp_path), Path("notes.yaml"))
    assert told.splitlines()[0] == "notes.jsonl: 40 rows"
    assert told.splitlines()[-2:] == ["  fedtorch data check notes.yaml", "  fedtorch run --config notes.yaml"]
    task = yaml_config.load(Path("notes.yaml")).task
    assert task.data.columns == {"text": "note", "label": "diagnosis"}  # type: ignore[attr-defined]
    assert task.data.clients.by == "hospital"  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.jsonl", "notes.yaml"]


def test_a_file_that_is_there_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.yaml").write_text("mine")
    assert main([notes(tmp_path)]) == 2
    assert "notes.yaml is there already and is not overwritten" in capsys.readouterr().err
    assert (tmp_path / "notes.yaml").read_text() == "mine"


def test_files_called_by_splits_are_no_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for name in ("train", "validation", "test"):
        (tmp_path / "a" / f"{name}.csv").write_text("text,label\n" + "".join(f"{text(i)},{i % 2}\n" for i in range(20)))
    write("a", Path("a.yaml"))
    data = yaml.safe_load((tmp_path / "a.yaml").read_text())["task"]["data"]
    assert data["source"] == "a/train.csv" and data["clients"] == {"iid": 2}
    assert data["splits"] == {"dev": "a/validation.csv", "test": "a/test.csv"}


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, 2, "'bad.jsonl' is no file, no folder with files, and no glob that names one"),
        ("", 3, "bad.jsonl has no rows"),
        ('{"a": 1}\n', 3, "bad.jsonl has no column of texts that a task reads, it has a (whole)"),
        ("[]\n", 3, "bad.jsonl:1: a JSON list, expected an object"),
    ],
)
def test_a_file_of_nothing_useful_is_named(
    content: str | None, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "bad.jsonl").write_text(content)
    assert main(["bad.jsonl"]) == code
    assert capsys.readouterr().err.startswith(f"fedtorch: {said}")
    assert not (tmp_path / "bad.yaml").exists()


def test_a_model_that_is_given_bounds_the_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "bert", "max_position_embeddings": 24}')
    write(notes(tmp_path), Path("n.yaml"), "./m")
    found = yaml.safe_load((tmp_path / "n.yaml").read_text())
    assert (found["task"]["model"], found["task"]["max_length"]) == ({"path": "./m"}, 24)


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ({"prompt": text, "completion": text}, {"truncate": "left"}),
        ({"text": text}, {"rows_are": "text"}),
        (
            {"messages": lambda i: [{"role": "assistant", "content": text(i)}]},
            {"rows_are": "messages", "chat_template": "a.jinja", "truncate": "left"},
        ),
        (
            {"source": text, "target": lambda i: f"{i}"},
            {"max_target_length": 16, "generate": {"max_new_tokens": 16}},
        ),
    ],
)
def test_tasks_with_texts_for_answers_are_told_what_rows_are(
    columns: Mapping[str, Maker], keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(30, **columns)))
    write("a.jsonl", Path("a.yaml"))
    task = yaml.safe_load((tmp_path / "a.yaml").read_text())["task"]
    assert {key: value for key, value in task.items() if key not in ("name", "model", "data", "max_length")} == keys
    assert (tmp_path / "a.jinja").exists() == ("chat_template" in keys)


def test_columns_that_are_passed_over_are_told_with_what_they_may_be() -> None:
    found = guessed(
        rows(
            text=text,
            label=lambda i: "ab"[i % 2],
            kind=lambda i: "xyz"[i % 3],
            figure=lambda i: i % 20,  # three rows of each, so that it may be a label
            code=lambda i: f"c{i % 21}",  # fewer of some
            city=lambda i: f"c{i}",
            same=lambda i: "s",
            flag=lambda i: i % 2 == 0,
            size=lambda i: i / 7,
            parts=lambda i: [1, 2],
            words=lambda i: "one two three four"[: 18 - i % 2],  # two texts, but long ones
        )
    )
    assert dict(found.why)["passed over"].split("; ") == [
        "client? `kind`, 3 values",
        "label? `figure`, 20 values",
        "text? `code`",
        "client? `city`, 60 values, too few rows of each",
        "`same`, one value",
        "label? `flag`, true or false",
        "label? `size`, numbers",
        "`parts` (lists of numbers)",
        "text? `words`",
    ]


def test_tools_are_read_with_messages_and_with_nothing_else() -> None:
    def talk(i: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "one two three"}]

    def tools(i: int) -> list[dict[str, str]]:
        return [{"name": "f"}]

    # four tokens and one of the role with two for each, and two more; of tools half of their 15 letters, and two
    assert guessed(rows(messages=talk)).tokens == 6 + 3 + 2
    assert guessed(rows(messages=talk, tools=tools)).tokens == 6 + 3 + 2 + 7 + 2
    pair: dict[str, Maker] = {"prompt": lambda i: "one two three", "completion": lambda i: "four five"}
    assert guessed(rows(**pair, tools=tools)).tokens == guessed(rows(**pair)).tokens == 4 + 2 + 3 + 2


def test_two_texts_are_a_source_and_its_target_where_the_task_is_said() -> None:
    found = guessed(rows(first=text, second=text), task="seq2seq")
    assert (found.task, found.roles) == ("seq2seq", {"source": "first", "target": "second"})
    with pytest.raises(ConfigError, match="has no columns that fit --task seq2seq"):
        guessed(rows(first=text, second=text, third=text), task="seq2seq")


def test_a_pair_of_texts_is_read_by_the_name_of_its_first() -> None:
    pair: dict[str, Maker] = {"premise": text, "hypothesis": text, "label": lambda i: i % 3}
    both = {"text": "premise", "text_pair": "hypothesis", "label": "label"}
    assert guessed(rows(**pair)).roles == guessed(rows(**pair), text="premise").roles == both
    assert guessed(rows(**pair), text="hypothesis").roles == {"text": "hypothesis", "label": "label"}


@pytest.mark.parametrize(("values", "task"), [("xy", "text_classification"), ("xyz", "causal_lm")])
def test_a_column_that_is_named_is_an_answer_where_it_has_many_values(values: str, task: str) -> None:
    found = guessed(rows(6, note=text, reply=lambda i: values[i % len(values)]), label="reply")
    assert found.task == task and "reply" in found.roles.values()


def test_columns_come_in_the_order_of_the_best_word_in_their_names() -> None:
    columns = [Column("rating"), Column("class"), Column("target_label"), Column("note"), Column("itsClass")]
    assert [column.name for column in by_name(columns, LABEL_NAMES)] == ["target_label", "class", "itsClass", "rating"]


def test_a_guess_begins_with_nothing_and_the_task_is_told_first() -> None:
    found = Guess()
    assert (found.iid, found.clients, found.rows, found.tokens, found.answer_tokens) == (0, 0, 0, 0, 0)
    assert (found.problem, found.scheme, found.decimal) == ("single_label", "iob2", ".")
    found.why.append(("clients", "said before"))
    assert found.take("causal_lm", {"text": "note"}, "a text")
    assert (found.task, found.roles) == ("causal_lm", {"text": "note"})
    assert found.why == [("causal_lm", "a text"), ("clients", "said before")]  # the task comes first


def test_three_rows_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = rows(30, text=text, label=lambda i: "xy"[i % 2] if i > 4 else None)
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    assert main(["n.jsonl"]) == 0
    assert "5 of 30 rows cannot be used" in (said := capsys.readouterr().out) and said.count("is missing or empty") == 3


@pytest.mark.parametrize(("tokens", "length"), [(10, 32), (33, 48), (256, 256), (257, 256), (5000, 256)])
def test_a_random_models_texts_are_cut_at_256_tokens(tokens: int, length: int) -> None:
    settings = Settings("n.jsonl", None, ModelKind(), {}, Path("n.jinja"), TextForm())
    assert settings.length(replace(guessed(rows(20, text=text, label=lambda i: i % 2)), tokens=tokens)) == length


@pytest.mark.parametrize(
    ("columns", "is_uneven"),
    [
        ({"text": text, "label": lambda i: "xy"[i % 2]}, True),
        ({"text": text, "label": lambda i: i / 7}, False),
        ({"source": text, "target": text}, False),
    ],
)
def test_labels_alone_can_be_dealt_unevenly(
    columns: Mapping[str, Maker], is_uneven: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(60, **columns)))
    write("a.jsonl", Path("a.yaml"))
    assert ("dirichlet" in (tmp_path / "a.yaml").read_text()) is is_uneven
