"""Files, folders and saved data sets: what is a row, who is its client, and where it stands."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.keys import Hub
from fedtorch.data.own.source import files_of, open_tables, rows_of

ROWS = [
    {"text": "NA", "label": "null"},
    {"text": "2024-01-01", "label": "007"},
    {"text": 'a "b",\u2028c', "label": "x"},
]
COLUMNS = {"text": "text", "label": "label"}


def read(source: Any, scratch: Path) -> list[Any]:
    """The rows of all tables; errors in place of rows that cannot be read."""
    with open_tables(source, scratch) as tables:
        found = [row for table in tables for _, row in rows_of(table, COLUMNS)]
    assert not list(scratch.glob(".rows-*"))
    return found


def owners(source: Any, scratch: Path) -> list[tuple[str, str, int]]:
    """(client, split, rows) of each table."""
    with open_tables(source, scratch) as tables:
        return [(table.owner, table.split, len(table.rows)) for table in tables]


def dataset(rows: list[dict[str, Any]] = ROWS) -> Any:
    from datasets import Dataset

    return Dataset.from_list(rows)


def write_jsonl(path: Path, rows: list[dict[str, Any]] = ROWS) -> None:
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")


def write_table(path: Path, separator: str) -> None:
    cells = [["text", "label"], *([row["text"], row["label"]] for row in ROWS)]
    quoted = [['"' + cell.replace('"', '""') + '"' for cell in line] for line in cells]
    path.write_bytes("\r\n".join(separator.join(line) for line in quoted).encode("utf-8-sig"))


def write_arrow(path: Path, stream: bool = True) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    with (
        pa.OSFile(str(path), "wb") as sink,
        (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as file,
    ):
        file.write_table(table)


KINDS: dict[str, Callable[[Path], object]] = {
    "rows.jsonl": write_jsonl,
    "lines.json": write_jsonl,
    "array.json": lambda path: path.write_text(json.dumps(ROWS)),
    "pretty.json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "rows.csv": lambda path: write_table(path, ","),
    "rows.tsv": lambda path: write_table(path, "\t"),
    "rows.parquet": lambda path: dataset().to_parquet(str(path)),
    "rows.arrow": write_arrow,
    "saved": lambda path: dataset().save_to_disk(str(path)),
}


@pytest.mark.parametrize("name", KINDS)
def test_rows_come_as_they_were_written(name: str, tmp_path: Path) -> None:
    """Also cells that look like missing values, dates and numbers."""
    KINDS[name](tmp_path / name)
    assert read(str(tmp_path / name), tmp_path) == ROWS


def test_every_line_of_a_text_file_that_is_not_blank_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("one\n\n two\u2028more\r\n")
    assert [row["text"] for row in read(str(tmp_path / "rows.txt"), tmp_path)] == ["one", " two\u2028more"]


def test_numbers_of_any_length_and_texts_of_any_size_are_kept(tmp_path: Path) -> None:
    rows = [{"text": "x" * 10_000_000, "label": 123456789012345678901234567890}, {"text": "y", "label": "z"}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert read(str(tmp_path / "rows.jsonl"), tmp_path) == rows
    (tmp_path / "rows.csv").write_text("text,label\n" + "x" * 1_000_000 + ",1\n")
    assert len(read(str(tmp_path / "rows.csv"), tmp_path)[0]["text"]) == 1_000_000


def test_columns_whose_names_mean_something_elsewhere_are_columns(tmp_path: Path) -> None:
    """`datasets` takes files with these two for traces of an agent."""
    rows = [{"type": "session", "message": {"a": 1}, "text": "t", "label": "l"}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert read(str(tmp_path / "rows.jsonl"), tmp_path) == [{"text": "t", "label": "l"}]


def test_splits_of_a_saved_data_set_keep_their_names(tmp_path: Path) -> None:
    from datasets import DatasetDict

    DatasetDict(train=dataset(), validation=dataset(ROWS[:1])).save_to_disk(str(tmp_path / "saved"))
    assert owners(str(tmp_path / "saved"), tmp_path) == [("saved", "train", 3), ("saved", "validation", 1)]


def test_numbers_of_named_labels_come_as_names(tmp_path: Path) -> None:
    from datasets import ClassLabel, Features, List

    label = ClassLabel(names=["ham", "spam"])
    data = dataset([{"text": [0, 1, 1], "label": 1}, {"text": [0], "label": -1}])
    named = data.cast(Features({"text": List(label), "label": label}))
    named.save_to_disk(str(tmp_path / "saved"))
    assert read(str(tmp_path / "saved"), tmp_path) == [
        {"text": ["ham", "spam", "spam"], "label": "spam"},
        {"text": ["ham"], "label": None},
    ]


def put(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(root / path, ROWS[:1])


@pytest.mark.parametrize(
    ("paths", "source", "expected"),
    [
        (["all.jsonl"], "all.jsonl", ["all"]),
        (["a.jsonl", "b.jsonl", ".c.jsonl"], ".", ["a", "b"]),
        (["a/1.jsonl", "a/deep/2.jsonl", "b/1.jsonl", "b/.ipynb_checkpoints/1.jsonl"], ".", ["a", "a", "b"]),
        (["a.jsonl", "b.jsonl", "c.txt"], "*.jsonl", ["a", "b"]),
        (["a/notes.jsonl", "b/notes.jsonl"], "*/notes.jsonl", ["a", "b"]),
        (["a/x/notes.jsonl", "b/y/notes.jsonl"], "**/*.jsonl", ["a", "b"]),
    ],
    ids=["file", "files", "folders", "glob", "glob of folders", "deep glob"],
)  # fmt: skip
def test_files_and_folders_are_clients(paths: list[str], source: str, expected: list[str], tmp_path: Path) -> None:
    put(tmp_path / "data", *paths)
    assert [owner for owner, _, _ in owners(os.path.join(tmp_path / "data", source), tmp_path)] == expected


def test_folders_of_saved_data_sets_are_clients(tmp_path: Path) -> None:
    for client in ("a", "b"):
        dataset().save_to_disk(str(tmp_path / "data" / client))
    assert owners(str(tmp_path / "data"), tmp_path) == [("a", "", 3), ("b", "", 3)]


def test_several_sources_are_read_one_after_the_other(tmp_path: Path) -> None:
    put(tmp_path, "one.jsonl", "two.jsonl")
    given = (str(tmp_path / "two.jsonl"), str(tmp_path / "one.jsonl"))
    assert [owner for owner, _, _ in owners(given, tmp_path)] == ["two", "one"]
    assert [path.name for path in files_of(given)] == ["two.jsonl", "one.jsonl"]


@pytest.mark.parametrize("source", ["nothing.jsonl", "nothing/*.csv", "empty"])
def test_a_source_without_files_is_an_error(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=re.escape(f"task.data.source names {source!r}, where no file is")):
        read(source, tmp_path)


def test_a_file_of_an_unknown_kind_is_named(tmp_path: Path) -> None:
    put(tmp_path / "data", "a.jsonl")
    (tmp_path / "data" / "readme.md").write_text("hello")
    with pytest.raises(ConfigError, match=r"readme\.md has none of the endings \.jsonl, "):
        read(str(tmp_path / "data"), tmp_path)


BAD = {
    "utf8.jsonl": (b'{"text": "a"}\n\n{"text": "\xff"}\n', ":3: byte 11 is not UTF-8"),
    "json.jsonl": (b'{"text": "a"}\n{"text": \n', ":2: not JSON (Expecting value, column 10)"),
    "number.jsonl": (b'{"text": "a"}\n7\n', ":2: a JSON int, expected an object"),
    "half.jsonl": (b'{"text": "a"}\n{"text": "\\ud800"}\n', ":2: half of a surrogate pair"),
    "deep.jsonl": (b'{"text": "a"}\n' + b"[" * 100_000 + b"\n", ":2: not usable JSON (RecursionError)"),
    "utf8.csv": (b'text,label\n"a\nb",c\nd\xff,e\n', ":4: line 4, byte 2 is not UTF-8 (0xff)"),
    "cells.csv": (b"text,label\na,b\nc\n", ":3: 1 cells, the header has 2"),
    "index.csv": (b"text,label\na,b,c\nd,e,f\n", ":2: 3 cells, the header has 2"),
    "quote.csv": (b'text,label\na,b\n"c,d\ne,f\n', ":3: not a row of a table (unexpected end of data)"),
    "quote.tsv": (b'text\tlabel\na\tb\n"c" d\te\n', ":3: not a row of a table"),
    "utf8.txt": (b"a\n\xff\n", ":2: byte 1 is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_with_its_line_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with open_tables(str(tmp_path / name), tmp_path) as [table]:
        found = [f"{table.where(i)}: {row}" for i, row in rows_of(table, COLUMNS) if isinstance(row, ValueError)]
    assert found[0].startswith(f"{tmp_path / name}{message}"), found


REFUSED = {
    "utf8.json": (b'[{"text": "a"},\n{"text": "\xff"}]', ":2: byte 11 is not UTF-8"),
    "comma.json": (b'[{"text": "a"}\n {"text": "b"}]', ":2: not JSON (no comma between two objects)"),
    "open.json": (b'[{"text": "a"},\n', ":2: not JSON (Expecting value"),
    "one.json": (b'{\n "data": [{"text": "a"}]\n}', ":1: not JSON (Expecting property name"),
    "twice.csv": (b"text,text\na,b\n", ":1: the header has the column `text` twice"),
    "none.jsonl": (b"\xff\n\xff\n", ":1: byte 1 is not UTF-8"),
    "rows.parquet": (b"no parquet", " cannot be read: "),
    "rows.arrow": (b"no arrow", " cannot be read: "),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / name}{message}")):
        read(str(tmp_path / name), tmp_path)
    assert not list(tmp_path.glob(".rows-*"))


def test_a_saved_data_set_that_is_damaged_is_named(tmp_path: Path) -> None:
    dataset().save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved" / "state.json").unlink()
    with pytest.raises(DataError, match="saved cannot be read as what save_to_disk wrote"):
        read(str(tmp_path / "saved"), tmp_path)


def test_a_hub_that_cannot_be_reached_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'nobody/nothing' could not be had from the hub .*save_to_disk"):
        read(Hub("nobody/nothing"), tmp_path)


def test_folders_of_a_glob_are_clients_even_where_only_one_is_there(tmp_path: Path) -> None:
    for client in ("north", "south"):
        (tmp_path / "notes" / client).mkdir(parents=True)
        write_jsonl(tmp_path / "notes" / client / "rows.jsonl")
        assert owners(str(tmp_path / "notes/*/rows.jsonl"), tmp_path)[-1] == (client, "", 3)
    assert owners(str(tmp_path / "notes/north/*.jsonl"), tmp_path) == [("rows", "", 3)]
