"""What a run says of its data before it trains: the words of `data check`, from one look at the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtorch.cli.__main__ import main
from fedtorch.config.load import load
from fedtorch.core.errors import DataError
from fedtorch.setup.build import build
from fedtorch.tasks import own_overview
from fedtorch.tasks.own_overview import overview
from tests.setup.test_data_check import CONFIG, row, write

SPOILT = [
    "1 client has no rows of test and no score there: east",
    "1 label has no rows in test: w (4 of train)",
    "1 label has no rows in train: v (1 of test)",
    "4.0% of the rows are longer than task.max_length and are cut",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def remarks(*overrides: str, ranks: int = 1, rank: int = 0) -> list[str]:
    return list(build(load("notes.yaml", ["eval.every=0", *overrides]), num_ranks=ranks, rank=rank).remarks)


def spoilt_rows() -> list[dict[str, Any]]:
    rows = [row(i) for i in range(40)]
    rows[8]["note"] = rows[9]["note"] = "scan of " * 30  # of 50
    rows[6]["label"] = "v"  # of test
    rows += [row(40 + i, site="east", split="train", label="w" if i < 4 else "x") for i in range(10)]
    return rows


def test_a_run_says_of_its_rows_what_data_check_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, spoilt_rows())
    assert main(["data", "check", "notes.yaml"]) == 0
    checked = capsys.readouterr().out.splitlines()
    assert remarks() == SPOILT
    assert [line for line in checked if line in SPOILT] == SPOILT
    assert main(["run", "notes.yaml", "--set", "rounds=1", "eval.every=0"]) == 0
    said = capsys.readouterr().err
    assert "WARNING about the data:\n  " + "\n  ".join(SPOILT) in said


def test_a_rank_speaks_of_its_own_clients(folder: Path) -> None:
    write(folder, spoilt_rows())
    own = [remarks("task.data.labels=[v, w, x, y, z]", ranks=4, rank=rank) for rank in range(4)]
    assert not own[0], "the server has no clients"
    assert sorted("1 label has no rows in train: v (1 of test)" in said for said in own[1:]) == [False, False, True]


def test_rows_in_order_are_not_remarked_on(folder: Path) -> None:
    write(folder, [row(i) for i in range(48)])
    assert not remarks()


def test_many_long_rows_are_not_read_a_second_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, [row(i, note="scan of " * 30) for i in range(80)])
    task: Any = load("notes.yaml").task
    again, read = list[int](), own_overview.lengths_of_texts
    monkeypatch.setattr(own_overview, "READ_AGAIN", 2)
    monkeypatch.setattr(own_overview, "lengths_of_texts", lambda *of: again.append(len(of[1])) or read(*of))
    assert own_overview.remarks(task, ["north", "west"]) == [
        "100.0% of the rows are longer than task.max_length and are cut"
    ]
    assert max(again) == 2
    assert overview(task).total().cut == 80 and max(again) > 2


def test_a_split_that_nobody_has_lacks_nothing(folder: Path) -> None:
    write(folder, [row(i) | {"split": "train"} for i in range(40)])
    assert not [line for line in remarks("eval.final_split=train") if "rows" in line]


def test_a_file_for_all_counts_once(folder: Path) -> None:
    rows = [row(i) | {"split": "train"} for i in range(40)]
    write(folder, rows, CONFIG.replace("splits: {column: split}", "splits: {dev: 0, test: test.jsonl}"))
    (folder / "test.jsonl").write_text((folder / "notes.jsonl").read_text().splitlines()[0] + "\n")
    (folder / "notes.jsonl").write_text((folder / "notes.jsonl").read_text().replace('"site"', '"s"'))
    config = load("notes.yaml", ["task.data.clients={iid: 3}", "eval.every=0"])
    assert list(build(config, num_ranks=1, rank=0).remarks) == [
        "2 labels have no rows in test: y (13 of train), z (13 of train)"
    ]


def test_rows_that_training_would_refuse_still_end_it_with_their_place(folder: Path) -> None:
    write(folder, spoilt_rows())
    with pytest.raises(DataError, match="train of client north has a row of .* tokens"):
        remarks("task.truncate=refuse")


def test_of_many_clients_none_is_read_before_the_first_round(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, spoilt_rows())  # of three clients
    monkeypatch.setattr("fedtorch.setup.remarks.CHECKED_CLIENTS", 3)
    assert remarks() == SPOILT
    monkeypatch.setattr("fedtorch.setup.remarks.CHECKED_CLIENTS", 2)
    assert remarks() == []


def test_examples_above_the_budget_of_a_micro_batch_are_counted(folder: Path) -> None:
    """Of 5 to 8 tokens; one as long as the budget is within it."""
    write(folder, [row(i, note="scan " * (2 + i // 2 % 4), split="train") for i in range(16)])
    lines = remarks("client.max_tokens_per_batch=7", "eval.final_split=train")
    told = "2 of 8 examples are longer than client.max_tokens_per_batch 7, the longest has 8 tokens"
    assert [line.partition(";")[0] for line in lines if "max_tokens" in line] == [
        f"north: {told}",
        f"west: {told}",
    ]
    assert not [line for line in remarks("client.max_tokens_per_batch=8", "eval.final_split=train") if "tokens" in line]
