"""`fedtorch data prepare own`: the rows of a run before the run, without their sources, and of these keys alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from differences import difference
from own_rows import BERT, weather, write_rows

from fedtorch.cli.__main__ import main
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.tasks.own import OwnTask

CONFIG = {
    "task": {
        "name": "text_classification",
        "model": BERT,
        "data": {"source": "rows.jsonl", "clients": {"by": "home"}, "tokenizer_size": 270},
        "max_length": 16,
    }
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), weather())
    Path("notes.yaml").write_text(yaml.safe_dump(CONFIG))
    return Path("notes.yaml")


def task_of(config: Path, *changes: str) -> OwnTask:
    task = load([config], changes).task
    assert isinstance(task, OwnTask)
    return task


def test_a_run_takes_the_folder_and_needs_no_sources(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = task_of(config)
    assert main(["data", "prepare", "own", "--config", str(config), "--out", "rows"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "rows: 3 clients with 12 to 12 of 36 rows",
        "fedtorch run --config notes.yaml --set task.data.prepared=rows",
    ]
    before = (expected.prepared["clients"], [e.ids for e in expected.load("north", "train")])
    Path("rows.jsonl").unlink()
    shutil.move("rows", "elsewhere")
    there = task_of(config, "task.data.prepared=elsewhere")
    assert there.folder == Path("elsewhere")
    assert (there.prepared["clients"], [e.ids for e in there.load("north", "train")]) == before
    assert there.facts() == expected.facts()  # so ranks agree, and a run may be resumed with it or without


def test_the_key_takes_no_part_in_what_a_run_is(config: Path) -> None:
    assert main(["data", "prepare", "own", "--config", str(config), "--out", "rows"]) == 0
    without, having = load([config]), load([config], ["task.data.prepared=rows"])
    assert having.task != without.task and difference(without, having) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task.data.splits={dev: 0.3}", r"prepared with task.data.splits .*'dev': 0.1.* but the config says .*0.3"),
        ("task.data.labels=[bad, good, ugly]", "prepared with task.data.labels"),
        ("task.tokenizer=words", "prepared with the task's own keys"),
        ("task.name=token_classification", "prepared for text_classification, but task.name is token_classification"),
    ],
)
def test_a_folder_of_other_keys_is_refused(config: Path, change: str, message: str) -> None:
    assert main(["data", "prepare", "own", "--config", str(config), "--out", "rows"]) == 0
    with pytest.raises(ConfigError, match=message):
        task_of(config, "task.data.prepared=rows", change).folder  # noqa: B018


def test_what_is_no_prepared_folder_is_refused(config: Path) -> None:
    with pytest.raises(
        DataError, match="task.data.prepared is nowhere, which `fedtorch data prepare own` has not made"
    ):
        task_of(config, "task.data.prepared=nowhere").folder  # noqa: B018
    own = task_of(config).folder  # made by a version that did not note the task's own keys
    manifest = json.loads((own / "manifest.json").read_text())
    del manifest["record"]["settings"]
    (own / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="has not made"):
        task_of(config, f"task.data.prepared={own}").folder  # noqa: B018


def test_a_folder_that_is_there_is_kept(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows").mkdir()
    assert main(["data", "prepare", "own", "--config", str(config), "--out", "rows"]) == 3
    assert "rows is there already" in capsys.readouterr().err


def test_a_papers_task_has_commands_of_its_own(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "own", "--config", "smoke/fedavg", "--out", "rows"]) == 2
    assert "this is for tasks with task.data.source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["partition", "notes.yaml"], "--out"),
        (["prepare", "own", "--config", "notes.yaml"], "--out"),
        (["prepare", "own", "--out", "x"], "--config"),
    ],
)
def test_what_has_to_be_named(words: list[str], missing: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["data", *words])
    assert f"the following arguments are required: {missing}" in capsys.readouterr().err
