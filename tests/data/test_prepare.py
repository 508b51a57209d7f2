from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fedtorch.data.folder import read_client, read_manifest, read_rows
from fedtorch.data.prepare import main
from fedtorch.data.prepare_text2sql import prepare_text2sql
from fedtorch.data.text2sql import CLIENTS
from fedtorch.text.sentencepiece import load_tokenizer

SPLITS = ["train"] * 12 + ["dev"] * 3 + ["test"] * 2


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Eight small sets in the published format; in each, two queries have a character that training lacks."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for stem in CLIENTS.values():
        sentences = [
            {"text": f"what is name0 number {n} of {stem} ?", "question-split": split, "variables": {"name0": value}}
            for n, (split, value) in enumerate(
                zip(SPLITS, ["Ann Bee", "Al"] * 6 + ["Zoé", "Al", "Al"] * 2, strict=False)
            )
        ]
        entries = [
            {
                "sql": [f'SELECT {stem}alias0.X , {stem}alias0.Y FROM {stem} WHERE NAME = "name0" AND X < 3 ;'],
                "variables": [{"name": "name0", "example": "Al", "location": "both", "type": "name"}],
                "sentences": sentences,
            }
        ]
        (folder / f"{stem}.json").write_text(json.dumps(entries))
        (folder / f"{stem}-schema.csv").write_text(f"Table, Field\n{stem}, X\n{stem}, NAME\n-, -\n")
    return folder


def run(raw: Path, out: Path, *more: str) -> int:
    return main(["prepare", "text2sql", "--raw", str(raw), "--out", str(out), "--vocab-size", "300", *more])


def test_the_command_prepares_all_clients_and_shows_their_sizes(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    assert run(raw, out, "--parse-sql") == 0
    shown = capsys.readouterr().out
    assert all(client in shown for client in CLIENTS)
    assert "total" in shown and "88.24 % of 136" in shown
    assert "lost: 16 unknown (characters that the vocabulary lacks)" in shown
    manifest = read_manifest(out)
    assert list(manifest["clients"]) == list(CLIENTS)
    assert {split: s["examples"] for split, s in manifest["clients"]["geoquery"]["splits"].items()} == {
        "train": 12,
        "dev": 3,
        "test": 2,
    }
    assert read_client(out, "geoquery") == {"schema": "| geography : x , name"}
    row = read_rows(out, "geoquery", "train")[0]
    assert row["question"] == "what is Ann Bee number 0 of geography ?"
    record = manifest["record"]
    assert record["db_content"] is False and record["round_trip"]["atis"]["train"]["misses"] == {}
    assert record["round_trip"]["atis"]["dev"]["misses"] == {"unknown": 1}
    assert record["parsed"]["atis"] == {"parsed": 3, "different": 3}
    assert len(load_tokenizer(out / "tokenizer")) == record["vocabulary"] <= 300
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
    assert str(tmp_path) not in (out / "manifest.json").read_text()


def test_preparing_again_gives_the_same_bytes_and_keeps_what_is_there(raw: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "a"):
        assert run(raw, tmp_path / name) == 0
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 8 * 4 + 3
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_a_folder_prepared_otherwise_or_by_others_is_not_touched(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(raw, out) == 0
    before = (out / "manifest.json").read_bytes()
    assert main(["prepare", "text2sql", "--raw", str(raw), "--out", str(out), "--vocab-size", "310"]) == 3
    assert "with other vocab_size; remove it or choose another --out" in capsys.readouterr().err
    (raw / "atis.json").write_text((raw / "atis.json").read_text() + "\n")
    assert run(raw, out) == 3
    assert "with other sources" in capsys.readouterr().err
    assert (out / "manifest.json").read_bytes() == before
    assert run(raw, raw) == 3
    assert "not a prepared folder" in capsys.readouterr().err


def test_errors_are_one_line_and_an_exit_code_and_leave_nothing(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["prepare", "text2sql", "--raw", str(raw), "--out", str(out), "--vocab-size", "10"]) == 2
    (raw / "yelp-schema.csv").write_text("nothing")
    assert run(raw, out) == 3
    (raw / "yelp-schema.csv").unlink()
    assert run(raw, out) == 3
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3 and all(line.startswith("error: ") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_every_set_is_a_client_and_others_can_be_chosen(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for end in (".json", "-schema.csv"):
        (raw / f"shop{end}").write_bytes((raw / f"geography{end}").read_bytes())
    assert run(raw, tmp_path / "all") == 0
    assert list(read_manifest(tmp_path / "all")["clients"]) == [*CLIENTS, "shop"]
    assert run(raw, tmp_path / "some", "--clients", "shop", "geography", "atis") == 0
    assert list(read_manifest(tmp_path / "some")["clients"]) == ["atis", "geoquery", "shop"]
    assert run(raw, tmp_path / "paper", "--clients", "paper") == 0
    assert list(read_manifest(tmp_path / "paper")["clients"]) == list(CLIENTS)
    assert run(raw, tmp_path / "none", "--clients", "shops") == 3
    assert (
        "has no set shops: shops.json or shops-schema.csv is missing; the sets there are adv" in capsys.readouterr().err
    )
    (raw / "shop-schema.csv").unlink()
    assert run(raw, tmp_path / "none") == 3
    assert "shop-schema.csv is missing, although shop.json is there; add it, or name" in capsys.readouterr().err
    assert run(raw, tmp_path / "none", "--clients", "paper") == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(empty, tmp_path / "nothing") == 3
    assert "has no X.json with X-schema.csv" in capsys.readouterr().err


def test_questions_marked_exclude_and_clients_without_training_rows_are_printed(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yelp = raw / "yelp.json"
    (raw / "atis.json").write_text((raw / "atis.json").read_text().replace('"dev"', '"exclude"'))
    yelp.write_text(yelp.read_text().replace('"train"', '"test"'))
    assert run(raw, tmp_path / "out") == 0
    shown = capsys.readouterr().out.splitlines()
    assert "left out of atis: 3 of 17 questions (the publisher marked them `exclude`)" in shown
    assert "nothing to train on: 1 of 8 clients (yelp)" in shown


def test_cell_values_give_a_row_its_own_schema(raw: Path, tmp_path: Path) -> None:
    databases = tmp_path / "databases"
    databases.mkdir()
    with closing(sqlite3.connect(databases / "geography.sqlite")) as connection:
        connection.execute("CREATE TABLE geography (x INTEGER, name TEXT)")
        connection.execute("INSERT INTO geography VALUES (1, 'Ann Bee')")
        connection.commit()
    manifest = prepare_text2sql(raw, tmp_path / "out", db_content=databases, vocab_size=300)
    rows = read_rows(tmp_path / "out", "geoquery", "train")
    assert rows[0]["schema"] == "| geography : x , name ( Ann Bee )" and "schema" not in rows[1]
    assert "schema" not in read_rows(tmp_path / "out", "atis", "train")[0]
    assert manifest["record"]["db_content"] is True
    assert manifest["record"]["db_content_clients"] == ["geoquery"]
    assert manifest["record"]["rows_with_values"] == {"geoquery": 6}


@pytest.mark.processes
def test_several_processes_may_prepare_the_same_folder_at_once(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fedtorch.data", "prepare", "text2sql", "--vocab-size", "300"]
    command += ["--raw", str(raw), "--out", str(out)]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    processes = [subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]
    assert len(read_rows(out, "yelp", "train")) == 12
