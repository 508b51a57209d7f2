"""The main job: a file of rows, three commands, and a model that plain transformers loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ranks import run_ranks

from fedtorch.cli.__main__ import main


def without_us(model: str, texts: list[str]) -> list[str]:
    """Labels by plain transformers, in a process that cannot import fedtorch any more."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fedtorch", "launchers")]:
        del sys.modules[name]
    sys.modules["fedtorch"] = None  # type: ignore[assignment]
    from transformers import pipeline

    return [found["label"] for found in pipeline("text-classification", model=model, device="cpu")(texts)]


@pytest.mark.processes
def test_a_file_becomes_a_model_without_a_line_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"benign": "mild old small slow".split(), "malignant": "grave new large fast".split()}
    rows = [
        {"note": f"the mass is {words[kind][i % 4]} and {words[kind][i // 4 % 4]}", "diagnosis": kind, "hospital": site}
        for i in range(12) for kind in words for site in ("north", "west")
    ]  # fmt: skip
    Path("notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["init", "notes.jsonl"]) == 0
    assert main(["run", "--config", "notes.yaml", "--set", "track.tensorboard=false", "rounds=4"]) == 0
    said = capsys.readouterr().out
    assert [word in said for word in ("north", "west", "micro", "macro", "accuracy")] == [True] * 5
    results = json.loads(Path("runs/notes/results.json").read_text())
    assert results["averages"]["accuracy"]["micro"] > 0.9
    card = Path("runs/notes/model/README.md").read_text()
    assert "rows of 2 clients" in card and not [name for name in ("north", "west", "grave") if name in card]

    Path("new.jsonl").write_text("".join(json.dumps({"note": row["note"]}) + "\n" for row in rows[::5]))
    assert main(["predict", "runs/notes", "new.jsonl"]) == 0
    answers = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    texts = [row["note"] for row in rows[::5]]
    assert run_ranks(without_us, 1, str(tmp_path / "runs/notes/model"), texts) == [answers]
    assert sum(a == row["diagnosis"] for a, row in zip(answers, rows[::5])) >= 0.9 * len(answers)


@pytest.mark.long
def test_a_client_with_one_row_and_a_row_of_a_megabyte_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"note {i} {'ab'[i % 2]}", "label": "ab"[i % 2], "home": "many"} for i in range(20)]
    rows += [{"text": "the only one", "label": "a", "home": "one"}]
    rows += [{"text": "a word and another " * 40_000, "label": "b", "home": "many"}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["init", "rows.jsonl"]) == 0
    options = ["--set", "task.data.clients.by=home", "task.data.clients.iid=null"]
    assert main(["data", "check", "rows.yaml", *options]) == 0
    assert "are longer than task.max_length and are cut" in capsys.readouterr().out
    assert main(["run", "--config", "rows.yaml", *options, "track.tensorboard=false", "rounds=1"]) == 0
    lonely = json.loads(Path("runs/rows/results.json").read_text())["clients"]["one"]
    assert lonely["examples"] == 1 and not lonely.get("scores")
