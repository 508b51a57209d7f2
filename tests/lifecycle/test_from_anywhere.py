"""`fedtorch export` and `predict` need no rows of the run, and no matter where they are started."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import BERT, classifier, names, weather, write_rows

from fedtorch.audit.subject import AuditOptions, opened
from fedtorch.cli.__main__ import main
from fedtorch.models.pretrained import save_model, save_tokenizer

pytestmark = pytest.mark.long

LORA = {"kind": "lora", "r": 2}
TASKS: dict[str, dict[str, Any]] = {
    "random": {"name": "text_classification", "model": BERT},
    "base": {"name": "text_classification", "model": {"path": "models/base"}, "tokenizer": "models/base"},
    "adapter": {"name": "text_classification", "model": {"path": "models/base", "adapter": LORA}},
    "random adapter": {"name": "text_classification", "model": {**BERT, "adapter": LORA}},
    "tags": {"name": "token_classification", "model": BERT},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that runs are started in; there is another one beside it."""
    (tmp_path / "elsewhere").mkdir()
    (project := tmp_path / "project").mkdir()
    monkeypatch.chdir(project)
    write_rows(Path("rows.jsonl"), weather())
    write_rows(Path("names.jsonl"), names())
    return project


def run(task: dict[str, Any], *settings: str, **more: Any) -> None:
    if "base" in str(task["model"]):
        base = classifier("rows.jsonl")
        save_model(base.build_model(3), Path("models/base"))
        save_tokenizer(base.vocabulary, Path("models/base"))
    source = "names.jsonl" if task["name"] == "token_classification" else "rows.jsonl"
    data = {"source": source, "clients": {"by": "home"}, "splits": {"dev": 0.2, "test": 0.2}, "tokenizer_size": 270}
    config = {
        "rounds": 2,
        "task": {"data": data, "max_length": 32, **task},
        "client": {"lr": 0.01, "batch_size": 4},
        "track": {"tensorboard": False, "progress": "off"},
        **more,
    }
    Path("own.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "--config", "own.yaml", *(["--set", *settings] if settings else [])]) == 0


def files(folder: Path) -> dict[str, bytes]:
    """Bytes of all files, without cards and where bases are."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told = {name: json.loads(text) for name, text in found.items() if name.endswith("adapter_config.json")}
    same = {name: json.dumps({**one, "base_model_name_or_path": ""}).encode() for name, one in told.items()}
    return {name: text for name, text in (found | same).items() if not name.endswith("README.md")}


def new_rows(folder: Path, kind: str) -> None:
    row = {"tokens": ["anna", "saw"]} if kind == "tags" else {"text": "rain and sun"}
    (folder / "new.jsonl").write_text(json.dumps(row) + "\n")


@pytest.mark.parametrize("kind", TASKS)
def test_without_its_rows_and_from_another_folder_a_run_gives_the_same_model_and_answers(
    kind: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(TASKS[kind])
    new_rows(project, kind)
    capsys.readouterr()
    assert main(["predict", "runs/own", "new.jsonl"]) == 0
    answers, written = capsys.readouterr().out, files(project / "runs/own/model")
    for file in ("rows.jsonl", "names.jsonl"):
        Path(file).unlink()
    shutil.rmtree("data")
    new_rows(tmp_path / "elsewhere", kind)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["export", "../project/runs/own", "--out", "model"]) == 0
    assert capsys.readouterr().out.startswith("model: the global model after 2 of 2 rounds")
    assert files(Path("model")) == written and (Path("model") / "README.md").is_file()
    shutil.rmtree(project / "runs/own/model")
    assert main(["export", "../project/runs/own"]) == 0
    assert files(project / "runs/own/model") == written
    capsys.readouterr()
    assert main(["predict", "../project/runs/own", "new.jsonl", "--out", "answers.jsonl"]) == 0
    assert Path("answers.jsonl").read_text() == answers
    assert sorted(os.listdir()) == ["answers.jsonl", "model", "new.jsonl"]  # nothing else is made here
    assert not (project / "data").exists()


def test_a_project_that_was_moved_whole_is_found_by_where_the_run_lies(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(TASKS["adapter"])
    written = files(project / "runs/own/model")
    monkeypatch.chdir(tmp_path / "elsewhere")
    project.rename(tmp_path / "moved")
    assert main(["export", str(tmp_path / "moved/runs/own"), "--out", "model"]) == 0
    assert files(Path("model")) == written


def test_a_copied_project_reads_its_own_files_though_the_first_is_there(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(TASKS["adapter"])
    shutil.copytree(project, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/models")
    assert main(["export", str(tmp_path / "copy/runs/own"), "--out", "model"]) == 2
    assert "task.model.path" in capsys.readouterr().err
    # a run that lies on another disk, and is linked to, is no copy
    shutil.move(project / "runs", tmp_path / "scratch/runs")
    (project / "runs").symlink_to(tmp_path / "scratch/runs")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["export", str(tmp_path / "scratch/runs/own"), "--out", "model"]) == 0


def test_a_name_that_is_a_file_where_the_command_is_started_is_not_taken_for_the_runs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run was taken elsewhere without its base; another one that is called so does not take its place."""
    run(TASKS["adapter"])
    shutil.copytree(project / "models", tmp_path / "elsewhere/models")
    shutil.move(project / "runs/own", tmp_path / "alone")
    shutil.rmtree(project)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["export", str(tmp_path / "alone"), "--out", "model"]) == 2
    assert "task.model.path" in capsys.readouterr().err and not Path("model").exists()
    # what the command line says begins where the command is started
    assert main(["export", str(tmp_path / "alone"), "--out", "model", "--set", "task.model.path=models/base"]) == 0
    assert json.loads(Path("model/adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tmp_path / "elsewhere/models/base"
    )


def test_an_audit_finds_the_rows_from_anywhere(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(TASKS["random"])
    monkeypatch.chdir(tmp_path / "elsewhere")
    with opened(Path("../project/runs/own"), [], [], AuditOptions()) as subject:
        assert subject.context.round == 2 and len(subject.examples("north")) > 0
    assert Path.cwd() == tmp_path / "elsewhere" and not os.listdir()


def test_a_run_of_before_that_recorded_nothing_is_read_where_it_lies(project: Path, monkeypatch: Any) -> None:
    run(TASKS["random"])
    written = files(project / "runs/own/model")
    shutil.rmtree(project / "runs/own/task")
    facts = json.loads((project / "runs/own/env.json").read_text())
    assert facts.pop("started in") == str(project)
    (project / "runs/own/env.json").write_text(json.dumps(facts))
    monkeypatch.chdir(project.parent / "elsewhere")
    assert main(["export", "../project/runs/own", "--out", "model"]) == 0
    assert files(Path("model")) == written


def test_of_clients_that_are_hidden_nothing_is_kept(project: Path) -> None:
    data = {
        "source": "rows.jsonl",
        "clients": {"by": "home"},
        "splits": {"dev": 0.0, "test": 0.0, "held_out": ["west"]},
    }
    promise = {"kind": "client", "clip": 1.0, "noise_multiplier": 1.0, "delta": 0.01}
    task = {**TASKS["random"], "data": {**data, "tokenizer_size": 270}}
    run(
        task,
        privacy=promise,
        algorithm={"name": "fedavg", "weights": "equal"},
        clients={"sampling": "poisson", "rate": 0.5},
        eval={"every": 0},
        client={"lr": 0.01, "batch_size": 4, "optimizer_state": "reset"},
    )
    assert (project / "runs/own/env.json").is_file() and not (project / "runs/own/task").exists()


def test_a_command_returns_to_where_it_was_started(project: Path, tmp_path: Path, monkeypatch: Any) -> None:
    run(TASKS["random"])
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["export", "../project/runs/own", "--client", "nobody"]) == 2
    assert Path.cwd() == tmp_path / "elsewhere"
