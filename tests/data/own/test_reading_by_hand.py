"""Rows as they are read: their lines, what is skipped, what a damaged file says, and how many errors are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_rows import own, write_rows

from fedtorch.core.errors import DataError
from fedtorch.data.own.keys import SplitRule
from fedtorch.data.own.rows import Row, content_digest, read_rows, split_of
from fedtorch.data.own.source import Table, files_of, open_tables, rows_of
from fedtorch.data.own.text_files import TextRows
from fedtorch.tasks.labelled_texts import LabelledTexts

FORM = LabelledTexts("single_label", ())


def lines(folder: Path, name: str, data: bytes) -> list[tuple[int, Any]]:
    """(line, row) of a file."""
    (folder / name).write_bytes(data)
    rows = TextRows(folder / name)
    return [(rows.line(i), row if isinstance(row, dict) else str(row)) for i, row in enumerate(rows)]


def test_a_row_of_a_table_has_the_line_at_which_it_begins(tmp_path: Path) -> None:
    found = lines(tmp_path, "a.csv", b'x,y\n1,"two\nlines"\n\n3,4\n5\n')
    assert found == [
        (2, {"x": "1", "y": "two\nlines"}),
        (5, {"x": "3", "y": "4"}),
        (6, "1 cells, the header has 2; quote cells with separators"),
    ]
    assert lines(tmp_path, "b.tsv", b"\xef\xbb\xbfx\ty\n1\t2\n") == [(2, {"x": "1", "y": "2"})]
    assert lines(tmp_path, "empty.csv", b"") == [] and lines(tmp_path, "head.csv", b"x,y\n") == []


@pytest.mark.parametrize("byte", [b"\x80", b"\xff"])
def test_bytes_of_another_encoding_are_named(byte: bytes, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=rf"a.csv:1: the header: line 1, byte 2 is not UTF-8 \(0x{byte.hex()}\); save the file"
    ):
        lines(tmp_path, "a.csv", b"x" + byte + b",y\n1,2\n")
    found = lines(tmp_path, "b.csv", b"x,y\n1,2" + byte + b"\n")
    advice = "save the file as UTF-8, or name its encoding in task.data.encoding (on Windows often cp1252)"
    assert found == [(2, f"line 2, byte 4 is not UTF-8 (0x{byte.hex()}); {advice}")]
    with pytest.raises(DataError, match="c.csv:1: the header has the column `x` twice"):
        lines(tmp_path, "c.csv", b"x,x\n")


def test_an_array_of_objects_is_read_with_blanks_anywhere(tmp_path: Path) -> None:
    found = lines(tmp_path, "a.json", b' [ {"x": 1} ,\n\n{"x": 2},{"x": 3}\t]\n')
    assert found == [(1, {"x": 1}), (3, {"x": 2}), (3, {"x": 3})] and lines(tmp_path, "b.json", b"[ ]") == []
    assert lines(tmp_path, "c.json", b'{"x": 1}\n{"x": 2}\n') == [(1, {"x": 1}), (2, {"x": 2})]
    for text, where in (
        (b'[{"x": 1}\n{"x": 2}]', "d.json:2: not JSON .no comma"),
        (b'[{"x": 1},', "d.json:1: not JSON"),
    ):
        with pytest.raises(DataError, match=where):
            lines(tmp_path, "d.json", text)


def test_files_of_a_folder_are_those_that_are_not_hidden(tmp_path: Path) -> None:
    for name in ("b.csv", "in/a.csv", ".hidden.csv", ".git/c.csv", "in/.x/d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    assert files_of(str(tmp_path)) == [tmp_path / "b.csv", tmp_path / "in" / "a.csv"]
    assert files_of(str(tmp_path / "*.csv")) == [tmp_path / "b.csv"]


class Columns:
    """Two rows of a data set, then bytes that nobody can read."""

    column_names = ("kind", "tags")

    class Feature:
        """Numbers that stand for names."""

        names = ("first", "second")

        def int2str(self) -> None: ...

    class Several:
        """Objects with a list of them."""

        def __init__(self, feature: Any) -> None:
            self.feature = feature

    features: Any = {"kind": Feature(), "tags": Several({"tag": Feature(), "text": None})}

    def select_columns(self, names: Any) -> Columns:
        """All of them."""
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"kind": 0, "tags": [{"tag": 1, "text": 0}, {"tag": 2, "text": 1}, {"tag": -1, "text": 2}]}
        yield {"kind": [1], "tags": None}
        raise OSError("of the file")


def test_numbers_that_stand_for_names_come_as_names_and_damage_is_named_with_its_row() -> None:
    found = rows_of(Table(Columns(), "part", "", ""), {"label": "kind", "tags": "tags"})
    tags = [{"tag": "second", "text": 0}, {"tag": None, "text": 1}, {"tag": None, "text": 2}]
    assert next(found) == (0, {"label": "first", "tags": tags})
    assert next(found) == (1, {"label": None, "tags": None})
    with pytest.raises(DataError, match="part, row 3 cannot be read .OSError.; write it anew"):
        next(found)


def read(folder: Path, rows: list[Any], **changes: Any) -> tuple[list[Row], list[str]]:
    data, problems = own(write_rows(folder / "rows.jsonl", rows), **changes), list[str]()
    with open_tables(data.source, folder) as tables:
        return list(read_rows(tables, data, FORM, problems)), problems


def test_twenty_errors_are_shown_and_reading_ends_soon_after(tmp_path: Path) -> None:
    bad, good = {"text": "", "label": "x", "home": "a"}, {"text": "t", "label": "x", "home": "a"}
    for count, more in ((20, ""), (21, ", and more"), (40, ", and more")):
        with pytest.raises(DataError) as caught:
            read(tmp_path, [good, *[bad] * count, good], skip_bad_rows=1)
        said = str(caught.value)
        assert said.startswith(f"rows that cannot be used{more}:\n") and said.count("rows.jsonl:") == 20
    rows, problems = read(tmp_path, [good, *[bad] * 22, good], skip_bad_rows=22)
    assert len(rows) == 2 and len(problems) == 22
    data, seen = own(str(tmp_path / "rows.jsonl"), skip_bad_rows=1), list[str]()
    write_rows(tmp_path / "rows.jsonl", [good, *[bad] * 40])
    with open_tables(data.source, tmp_path) as tables, pytest.raises(DataError):
        list(read_rows(tables, data, FORM, seen))
    assert len(seen) == 22  # one more than can be skipped or shown


@pytest.mark.parametrize("owner", [0, 1.5, "a", -3])
def test_a_client_is_called_by_a_text_or_a_number(owner: Any, tmp_path: Path) -> None:
    rows, _ = read(tmp_path, [{"text": "t", "label": "x", "home": owner}])
    assert [row.owner for row in rows] == [str(owner)]


def test_texts_that_differ_in_case_spaces_or_form_have_one_digest_of_16_bytes() -> None:
    digest = content_digest(["Größe  1", "b"])
    assert len(digest) == 16 and digest == content_digest(["gro\u0308sse 1", "B "]) != content_digest(["größe 1b"])


def test_the_first_cell_of_a_header_tells_that_a_table_is_json(tmp_path: Path) -> None:
    for text in (b'{"x": 1}\n', b' [{"x": 1}]\n'):
        with pytest.raises(DataError, match="a.csv:1: JSON in place of a header"):
            lines(tmp_path, "a.csv", text)
    assert lines(tmp_path, "b.csv", b'x,"{""y"""\n1,2\n') == [(2, {"x": "1", '{"y"': "2"})]


def test_a_split_is_ours_by_the_keys_then_by_its_usual_name() -> None:
    data = own("rows.jsonl", splits=SplitRule("exam", 0.1))
    named = {name: split_of(name, data) for name in ("exam", "validation", "train", "extra", "")}
    assert named == {"exam": "dev", "validation": "dev", "train": "train", "extra": "extra", "": ""}
