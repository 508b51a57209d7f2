"""`fedtorch data check` and `fedtorch data partition`: tables, picture, partition, and what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedtorch.cli.__main__ import main
from fedtorch.config.load import load
from fedtorch.core.errors import DataError
from fedtorch.data.own.partition_files import read_partition
from fedtorch.stats.bins import Bins
from fedtorch.stats.of_overview import stats_of
from fedtorch.tasks.own_overview import overview

CONFIG = """
task:
  name: text_classification
  model: {random: bert, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8}
  data: {source: notes.jsonl, columns: {text: note}, clients: {by: site}, splits: {column: split}}
  max_length: 16
"""
WORDS = "scan fever lung mass history report grave mild severe benign".split()


def write(folder: Path, rows: list[Any], config: str = CONFIG) -> None:
    (folder / "notes.yaml").write_text(config)
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(i: int, **changed: Any) -> dict[str, Any]:
    site, split = ("north", "west")[i % 2], ("train", "train", "train", "test")[i // 2 % 4]
    note = " ".join(WORDS[i * k % 10] for k in range(1, 6)) + f" {i}"
    return {"note": note, "label": "xyz"[i % 3], "site": site, "split": split} | changed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_clients_have_is_shown_and_no_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(i) for i in range(40)]
    rows[8]["note"] = "  SCAN of " * 30  # at north's train, too long
    rows[9]["note"] = rows[17]["note"] = "mass mass"  # twice at west's train
    rows[6]["note"] = "Mass  mass"  # north's test: the same but for case and spaces
    write(folder, rows)
    assert main(["data", "check", "notes.yaml"]) == 0
    said = capsys.readouterr().out
    cells = [" ".join(line.split()) for line in said.splitlines()]
    assert "north 15 0 5 0.000 x 5, z 5, y 5" in cells
    assert "west 15 0 5 0.000 y 5, x 5, z 5" in cells and "all 30 0 10 x 10, z 10, y 10" in cells
    lengths = {line.split()[0]: line.split()[3:] for line in cells if "%" in line and line[0] in "nwa"}
    assert int(lengths["north"][0]) > 60 and lengths["north"][1:] == ["5.0%", "0", "1", "1", "0"]
    assert lengths["west"][1:] == ["0.0%", "1", "2", "0", "0"] and lengths["all"][1:] == ["2.5%", "1", "3", "1", "0"]
    assert "1 rows of dev and test are in some client's train: their scores are too good" in cells
    place = r"data/own/text_classification-\w+"
    assert re.search(rf"{place}/north/test.jsonl:1 is {place}/west/train.jsonl:4", said)
    assert (folder / "notes.check.png").read_bytes().startswith(b"\x89PNG")
    assert not [word for word in WORDS if word in said.casefold()]


@pytest.mark.processes
def test_many_rows_are_looked_at_by_several_processes_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose errors come as they are."""
    rows = [row(i, site=f"site{i % 5}") for i in range(120)]
    rows[7]["note"] = "scan of " * 30
    write(folder, rows)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    task: Any = load("notes.yaml", ["task.truncate=refuse"]).task
    told = list[tuple[int, int]]()
    alone = overview(task)
    monkeypatch.setattr("fedtorch.tasks.own_overview.ROWS_ON_ALL_CORES", 1)
    assert overview(task, lambda done, of: told.append((done, of))) == alone
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert len(alone.problems) == 1 and "site2 has a row of" in alone.problems[0]
    next(iter(task.folder.glob("site3/train.jsonl"))).unlink()
    with pytest.raises(DataError, match="train.jsonl is missing, although the manifest names client 'site3'"):
        overview(task)


def test_tokens_are_those_before_anything_is_cut(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of rows that are a token shorter, as long as, and longer than what is kept."""
    rows = [row(i, note="scan " * (i % 20 + 1)) for i in range(60)]
    write(folder, rows)
    task: Any = load("notes.yaml").task
    vocabulary = task.vocabulary
    wanted = sorted(len(vocabulary(each["note"]).input_ids) for each in rows)
    found = overview(task)
    assert sorted(found.total().tokens) == wanted and {15, 16, 17} <= set(wanted)
    assert main(["data", "check", "notes.yaml"]) == 0
    median, most, longest = next(
        map(int, line.split()[1:4])
        for line in reversed(capsys.readouterr().out.splitlines())
        if line.split()[:1] == ["all"]
    )
    assert median in wanted[29:31] and most in wanted[56:58] and longest == wanted[-1]
    assert found.total().cut == sum(length > 16 for length in wanted)


def test_rows_are_shown_if_they_are_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, [row(i) for i in range(12)])
    assert main(["data", "check", "notes.yaml", "--show", "3", "--out", "x.png"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("north: {", "west: {"))]
    assert [line.partition(":")[0] for line in shown] == ["north", "west", "north"]
    assert json.loads(shown[0].partition(":")[2])["text"] == row(0)["note"]
    assert (folder / "x.png").is_file() and not (folder / "notes.check.png").exists()


def test_what_needs_other_ranks_or_a_permission_is_not_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A secure sum is of three workers and more, and an attack wants a word in the environment of its run."""
    write(folder, [row(i) for i in range(40)])
    secure = ["privacy={clip: 1.0, secure_sum: {threshold: 0.7}}", "algorithm={name: fedavg, weights: equal}"]
    for options in (secure, ["attack={kind: signflip, clients: [north]}"]):
        assert main(["data", "check", "notes.yaml", "--set", *options]) == 0, capsys.readouterr().err


def test_ranks_are_not_looked_at_and_a_long_remark_is_one_line(folder: Path, capsys: Any) -> None:
    write(folder, [row(i, site=f"hospital-{i % 12:02}", split="train" if i % 12 else "test") for i in range(48)])
    assert main(["data", "check", "notes.yaml", "--set", "system.ranks_per_worker=3", "client.accumulation=1"]) == 0
    names = ", ".join(f"hospital-{i:02}" for i in range(1, 11))
    assert f"11 clients have no rows of test and no score there: {names}" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("changed", "options", "code", "said"),
    [
        ({"label": None}, [], 3, "notes.jsonl:4: `label` is missing or empty"),
        ({"site": ""}, [], 3, "notes.jsonl:4: the column `site` is empty, so the row has no client"),
        ({}, ["task.truncate=refuse", "task.max_length=6"], 3, "training would refuse these data:\n  train of client"),
        ({}, ["task.data.columns={text: nots}"], 2, "has no column `nots`; did you mean `note`?"),
        ({}, ["clients.per_round=9"], 2, "clients.per_round is 9"),
    ],
)
def test_what_training_refuses_is_refused(
    changed: dict[str, Any], options: list[str], code: int, said: str, folder: Path, capsys: Any
) -> None:
    write(folder, [row(i) | (changed if i == 3 else {}) for i in range(12)])
    assert main(["data", "check", "notes.yaml", *(["--set", *options] if options else [])]) == code
    assert said in capsys.readouterr().err


def test_at_most_twenty_rows_that_cannot_be_used_are_named(folder: Path, capsys: Any) -> None:
    write(folder, [row(i, label=None) for i in range(50)] + [row(i) for i in range(8)])
    assert main(["data", "check", "notes.yaml"]) == 3
    assert capsys.readouterr().err.count("notes.jsonl:") == 20


@pytest.mark.parametrize("other", ["NORTH", "\uff4eorth"])
def test_clients_whose_files_could_be_taken_for_one_another_are_not_written(
    other: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, [row(i) for i in range(16)] + [row(i, site=other) for i in range(8)])
    assert main(["data", "partition", "notes.yaml", "--out", "parts"]) == 3
    assert "look alike; rename one" in capsys.readouterr().err and not (folder / "parts").exists()


@pytest.mark.parametrize("command", ["check", "partition"])
def test_a_task_with_prepared_data_is_refused(command: str, capsys: Any, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "x")]
    assert main(["data", command, "smoke/fedavg", *out]) == 2
    assert "task.name is text2sql, whose data `fedtorch data prepare` has checked" in capsys.readouterr().err


def test_a_partition_is_the_one_that_is_trained_with(folder: Path, capsys: Any) -> None:
    write(folder, [row(i, id=f"r{i}") for i in range(40)], CONFIG.replace("by: site}", "iid: 3}, id: id"))
    assert main(["data", "partition", "notes.yaml", "--out", "parts"]) == 0
    assert capsys.readouterr().out == "parts: 3 clients with 13 to 14 of 40 rows\n"
    parts = read_partition(folder / "parts")
    assert sorted(sum(parts.values(), [])) == sorted(f"r{i}" for i in range(40))
    assert main(["data", "check", "notes.yaml"]) == 0
    [prepared] = (folder / "data" / "own").iterdir()
    notes = {row(i)["note"]: f"r{i}" for i in range(40)}
    for client, ids in parts.items():
        lines = [line for file in (prepared / client).glob("*.jsonl") for line in file.read_text().splitlines()]
        assert {notes[json.loads(line)["text"]] for line in lines} == set(ids)
    assert main(["data", "partition", "notes.yaml", "--out", "parts"]) == 3


def test_the_page_is_that_of_stats_over_silos(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(i) for i in range(40)]
    rows[8]["note"] = "scan of " * 30
    rows[9]["note"] = rows[17]["note"] = "mass mass"
    write(folder, rows)
    assert main(["data", "check", "notes.yaml", "--html", "out/check.html"]) == 0
    assert "page: out/check.html" in capsys.readouterr().out
    text = (folder / "out" / "check.html").read_text()
    assert 'title="north, x: 33% of its rows">5<' in text and "All rows lie here; nothing was sent." in text
    assert "are longer than task.max_length and are cut" in text and "What each number tells" not in text
    assert not [word for word in WORDS if word in text.casefold()]
    task: Any = load("notes.yaml").task
    found = overview(task)
    tables = stats_of(found, task.max_length, "a new tokenizer")
    assert tables.silos == ("north", "west") and [table.name for table in tables.tables] == [
        "rows", "twice", "labels", "tokens"
    ]  # fmt: skip
    by_name = {table.name: table for table in tables.tables}
    assert dict(zip(by_name["rows"].cells, by_name["rows"].pooled, strict=True)) == found.total().rows
    assert by_name["twice"].silos == {"north": (0.0,), "west": (1.0,)}
    assert by_name["labels"].parts and dict(
        zip(by_name["labels"].cells, by_name["labels"].pooled, strict=True)
    ) == dict(found.total().labels)
    for name, client in found.clients.items():
        bins = Bins.of(tables, by_name["tokens"], name)
        low, high = bins.quantile(0.5) or (0, 0)
        assert low <= client.quantile(0.5) < high
        (cut,) = (place for place, edge in enumerate(by_name["tokens"].edges) if edge == 17)  # one more than 16
        assert bins.from_edge(cut) == client.cut
    assert main(["data", "check", "notes.yaml", "--html", "notes.jsonl/check.html"]) == 2
    assert "give another name by --html" in capsys.readouterr().err
