"""`fedtorch predict`: the answers are those that the model was evaluated with."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedtorch.cli.__main__ import main
from fedtorch.config import load as yaml_config
from fedtorch.setup import predict
from fedtorch.tasks.text_classification import TextClassification

BERT = "{random: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}"
GPT2 = "{random: gpt2, n_embd: 16, n_layer: 1, n_head: 2}"
WORDS = "scan fever lung mass history report grave mild severe benign".split()


def note(i: int) -> str:
    return " ".join(WORDS[i * k % 10] for k in range(1, 2 + i % 7))


def trained(folder: Path, problem: str, label: Any, model: str = BERT) -> TextClassification:
    """A run folder with a model whose weights are random, and the task that it is for."""
    rows = [{"note": note(i), "label": label(i)} for i in range(30)]
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run" / "model").mkdir(parents=True)
    path = folder / "run" / "config.yaml"
    path.write_text(
        f"task: {{name: text_classification, problem: {problem}, model: {model}, max_length: 8, "
        "data: {source: notes.jsonl, columns: {text: note}, clients: {iid: 2}}}\n"
    )
    task = yaml_config.load(path).task
    assert isinstance(task, TextClassification)
    task.save_model(task.build_model(1), folder / "run" / "model")
    return task


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("problem", "label", "model"),
    [
        ("single_label", lambda i: "xyz"[i % 3], BERT),
        ("single_label", lambda i: "xyz"[i % 3], GPT2),
        ("multi_label", lambda i: ["x", "y", "z"][: 1 + i % 3], BERT),
        ("regression", lambda i: i / 4, BERT),
    ],
)
def test_answers_are_what_the_model_is_evaluated_by(problem: str, label: Any, model: str, folder: Path) -> None:
    task = trained(folder, problem, label, model)
    client = next(iter(task.manifest()))
    texts = [row["text"] for row in task.rows(client, "train")]
    (folder / "notes.jsonl").unlink()  # the training data are not needed
    (folder / "new.jsonl").write_text("".join(json.dumps({"note": text, "more": 1}) + "\n" for text in texts))
    assert main(["predict", "run", "new.jsonl", "--out", "answers.jsonl"]) == 0
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    with torch.no_grad():
        found = task.predict(task.build_model(1).eval(), task.load(client, "train"), 4)
    if problem == "regression":
        assert [answer["value"] for answer in answers] == pytest.approx(found, abs=1e-6)
    elif problem == "multi_label":
        assert [answer["labels"] for answer in answers] == [["xyz"[i] for i in one] for one in found]
        for answer in answers:
            assert {label for label, p in answer["probabilities"].items() if p > 0.5} == set(answer["labels"])
    else:
        assert [answer["label"] for answer in answers] == ["xyz"[i] for i in found]
        for answer in answers:
            assert math.isclose(sum(answer["probabilities"].values()), 1.0, abs_tol=1e-5)
            assert max(answer["probabilities"], key=answer["probabilities"].__getitem__) == answer["label"]


def test_clients_with_models_of_their_own_are_asked_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(folder, "single_label", lambda i: "xyz"[i % 3])
    (folder / "run" / "results.json").write_text('{"clients": {"north": {}, "west": {}}}')
    assert main(["predict", "run", "notes.jsonl", "--client", "west"]) == 0  # all have one model
    together = capsys.readouterr().out
    assert len(together.splitlines()) == 30 and json.loads(together.splitlines()[0]).keys() == {
        "row",
        "label",
        "probabilities",
    }
    (folder / "run" / "model").rename(folder / "run" / "west")
    (folder / "run" / "model").mkdir()
    (folder / "run" / "west").rename(folder / "run" / "model" / "west")
    assert main(["predict", "run", "notes.jsonl", "--client", "west"]) == 0
    assert capsys.readouterr().out == together
    assert main(["predict", "run", "notes.jsonl"]) == 2
    assert "name a client with --client" in capsys.readouterr().err
    assert main(["predict", "run", "notes.jsonl", "--client", "wst"]) == 2
    assert "--client is wst, of whom run has no model; did you mean `west`?" in capsys.readouterr().err


BAD = {
    '{"note": ""}': "`note` is missing or empty; correct the row",
    '{"other": "a"}': "`note` is missing or empty; correct the row",
    '{"note": 3}': "the text is a int, expected a string; correct the row",
    '{"note": "a"': "not JSON (Expecting ',' delimiter, column 13); expected one JSON object a line; correct the row",
}


@pytest.mark.parametrize("strict", [False, True])
def test_rows_that_cannot_be_answered_are_listed_and_the_others_are_answered_as_without_them(
    strict: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(folder, "single_label", lambda i: "xyz"[i % 3])
    good = [json.dumps({"note": note(i)}) for i in range(9)]
    (folder / "good.jsonl").write_text("\n".join(good) + "\n")
    assert main(["predict", "run", "good.jsonl"]) == 0
    plain = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    mixed = [good[0], *BAD, *good[1:], '{"note": null}']
    (folder / "new.jsonl").write_text("\n".join(mixed) + "\n")
    options = ["--strict"] if strict else []
    assert main(["predict", "run", "new.jsonl", "--out", "answers.jsonl", *options]) == 3 * strict
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert [answer["row"] for answer in answers] == list(range(1, 15))
    wrong = {2 + i: f"new.jsonl:{2 + i}: {why}" for i, why in enumerate(BAD.values())}
    wrong[14] = "new.jsonl:14: `note` is missing or empty; correct the row"
    assert {answer["row"]: answer["error"] for answer in answers if "error" in answer} == wrong
    answered = [answer for answer in answers if "error" not in answer]
    assert [answer | {"row": i} for i, answer in enumerate(answered, start=1)] == plain
    said = capsys.readouterr().err
    assert "5 of 14 rows have no answer:" in said and all(f"\n  {why}" in said for why in wrong.values())


def test_where_no_row_can_be_answered_the_code_is_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(folder, "single_label", lambda i: "xyz"[i % 3])
    (folder / "new.jsonl").write_text('{"note": ""}\n' * 30)
    assert main(["predict", "run", "new.jsonl"]) == 3
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 30 and "30 of 30 rows have no answer" in err
    assert "and 10 more, which are in the output under `error`" in err


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ('{"text": "a"}\n', 2, "new.jsonl has no column `note`; "),
        (None, 2, "'new.jsonl' is no file"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_and_nothing_is_left(
    rows: str | None, code: int, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(folder, "single_label", lambda i: "xyz"[i % 3])
    if rows is not None:
        (folder / "new.jsonl").write_text(rows)
    assert main(["predict", "run", "new.jsonl", "--out", "answers.jsonl"]) == code
    assert said in capsys.readouterr().err
    assert not list(folder.glob("answers*"))


@pytest.mark.parametrize("run", ["nowhere", "."])
def test_a_folder_that_is_no_run_is_refused(run: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", run, "x.jsonl"]) == 2
    assert "config.yaml does not exist; name the folder of a run" in capsys.readouterr().err


def test_a_reader_that_wants_no_more_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `| head`; what is left in the buffer goes nowhere, or Python would complain at its end."""
    trained(folder, "single_label", lambda i: "xyz"[i % 3])
    closed: Any = SimpleNamespace(
        write=lambda text: None, flush=lambda: exec("raise BrokenPipeError"), fileno=lambda: 7
    )
    turned = list[tuple[int, int]]()
    monkeypatch.setattr(predict.sys, "stdout", closed)
    monkeypatch.setattr(predict.os, "dup2", lambda null, stream: turned.append((null, stream)))
    assert predict.main(["run", "notes.jsonl"]) == 0
    assert [stream for _, stream in turned] == [7]
    os.close(turned[0][0])
