"""Rows of one's own on disks of their own: every rank prepares its clients' files where they lie."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from own_rows import BERT, weather, write_rows
from ranks import expect_exit, run_ranks

from fedtorch.main import main
from fedtorch.text.byte_bpe import train_subwords

DISKS = {0: "server", 1: "one", 2: "two"}  # rank -> the machine that it runs on
PINNED = {"north": 1, "south": 2, "west": 2}
ROWS = {place: [row for row in weather() if PINNED[row["home"]] == rank] for rank, place in DISKS.items() if rank}
TASK: dict[str, Any] = {
    "name": "text_classification",
    "model": BERT,
    "tokenizer": "words",
    "max_length": 32,
    "data": {
        "source": "rows.jsonl",
        "clients": {"by": "home"},
        "labels": ["good", "bad"],
        "splits": {"dev": 0.25, "test": 0.25, "held_out": ["west"]},
    },
}


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    """The tokenizer is everywhere, a row on its client's disk only; `all` has all."""
    train_subwords([row["text"] for row in weather()], tmp_path / "server" / "words", size=270)
    for place in ("one", "two", "all"):
        shutil.copytree(tmp_path / "server" / "words", tmp_path / place / "words")
        rows = ROWS.get(place, weather())
        write_rows(tmp_path / place / "rows.jsonl", rows)
        for name in {row["home"] for row in rows}:
            write_rows(tmp_path / place / "notes" / name / "rows.jsonl", [row for row in rows if row["home"] == name])
    return tmp_path


def write_config(root: Path, run: str, task: Mapping[str, Any] = TASK) -> str:
    config = {
        "task": task,
        "run": {"dir": str(root / run), "name": run},
        "rounds": 2,
        "algorithm": {"name": "fedavg"},
        "clients": {"per_round": 2},
        "client": {"batch_size": 4, "optimizer": "adamw", "lr": 0.01},
        "track": {"progress": "lines", "tensorboard": False},
        "system": {"placement": "pinned", "pinned": PINNED, "timeout": 30.0},
    }
    path = root / f"{run}.yaml"
    path.write_text(json.dumps(config))
    return str(path)


def with_data(**changes: Any) -> dict[str, Any]:
    return TASK | {"data": TASK["data"] | changes}


def as_rank(root: str, config: str) -> int:
    os.chdir(Path(root) / DISKS[int(os.environ["RANK"])])
    return main(["--config", config])


def results(run: Path) -> tuple[str, dict[str, Any]]:
    found = json.loads((run / "results.json").read_text())
    return found["digest"], {name: row["scores"] for name, row in found["clients"].items()}


@pytest.mark.processes
@pytest.mark.parametrize(
    "task",
    [
        TASK,
        with_data(source="notes/*/rows.jsonl", clients={"by": "file"}),
        with_data(splits=TASK["data"]["splits"] | {"stratify": True}),
    ],
    ids=["column", "folders", "a row of every label"],
)
def test_disks_of_their_own_give_the_bits_of_one(
    task: Mapping[str, Any], disks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_ranks(as_rank, 3, str(disks), write_config(disks, "apart", task)) == [0, 0, 0]
    assert not (disks / "server" / "data").exists()  # it has no rows to prepare
    monkeypatch.chdir(disks / "all")
    assert main(["--config", write_config(disks, "together", task)]) == 0
    assert results(disks / "apart") == results(disks / "together")
    assert results(disks / "apart")[1].keys() == PINNED.keys()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (with_data(clients={"iid": 3}), "task.data.clients.iid deals rows that are all in one place"),
        (with_data(labels=[]), "no rank sees all labels; declare them in task.data.labels"),
        (TASK | {"tokenizer": None}, "every rank would train a vocabulary on its own texts; name one for all with"),
        (TASK | {"class_weights": "balanced"}, "task.class_weights is balanced, for which all rows are counted"),
    ],
)
def test_what_needs_all_rows_in_one_place_is_refused_before_the_ranks_meet(
    task: Mapping[str, Any], message: str, disks: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(disks / "all")
    assert main(["--config", write_config(disks, "refused", task)]) == 2
    assert message in capsys.readouterr().err + (disks / "refused" / "log.rank0.txt").read_text()


@pytest.mark.processes
def test_a_client_that_is_held_out_has_a_place(disks: Path) -> None:
    splits = TASK["data"]["splits"] | {"held_out": ["wst"]}
    config = write_config(disks, "typo", with_data(splits=splits))
    assert [o.result for o in expect_exit(as_rank, 3, str(disks), config)] == [2, 2, 2]
    assert "task.data.splits.held_out names 'wst', who is no client" in (disks / "typo/log.rank0.txt").read_text()


@pytest.mark.processes
def test_another_tokenizer_on_one_disk_is_noticed(disks: Path) -> None:
    shutil.rmtree(disks / "two" / "words")
    train_subwords(["something else"] * 9, disks / "two" / "words", size=270)
    found = expect_exit(as_rank, 3, str(disks), write_config(disks, "other"))
    assert [o.result for o in found] == [4, 4, 4]
    assert "vocabulary" in (disks / "other" / "log.rank0.txt").read_text()


@pytest.mark.processes
def test_a_client_whose_rows_are_elsewhere_is_named(disks: Path) -> None:
    write_rows(disks / "one" / "rows.jsonl", [row | {"home": "nrth"} for row in ROWS["one"]])
    assert [o.result for o in expect_exit(as_rank, 3, str(disks), write_config(disks, "lost"))] == [3, 3, 3]
    assert "has no `north`; its clients are nrth" in (disks / "lost" / "log.rank1.txt").read_text()
