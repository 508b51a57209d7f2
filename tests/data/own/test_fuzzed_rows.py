"""Data files damaged at random, of every kind that can be read: rows, or an error that names the file and no text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fuzzing import cases, only_named_errors, spoilt, text_of, torn
from hypothesis import given
from hypothesis import strategies as st
from own_rows import own

from fedtorch.core.errors import FedtorchError
from fedtorch.data.own.rows import read_rows
from fedtorch.data.own.source import column_names, open_tables
from fedtorch.tasks.labelled_texts import LabelledTexts

CANARY = "cinnamon walrus"
ROWS = [{"text": f"{CANARY} {n}", "label": ("good", "bad")[n % 2], "home": "ab"[n % 2]} for n in range(6)]
PLAIN = ("rows.jsonl", "rows.json", "rows.csv", "rows.tsv", "rows.txt")
BINARY = ("rows.parquet", "rows.arrow", "saved")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in every kind of file."""
    datasets = pytest.importorskip("datasets")
    root = tmp_path_factory.mktemp("whole")
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (root / "rows.json").write_text(json.dumps(ROWS))
    for name, mark in (("rows.csv", ","), ("rows.tsv", "\t")):
        lines = [list(ROWS[0]), *([*row.values()] for row in ROWS)]
        (root / name).write_text("".join(mark.join(map(str, line)) + "\n" for line in lines))
    (root / "rows.txt").write_text("".join(f"{row['text']}\n" for row in ROWS))
    made = datasets.Dataset.from_list(ROWS)
    made.to_parquet(root / "rows.parquet")
    made.save_to_disk(root / "saved")
    shutil.copyfile(next((root / "saved").glob("*.arrow")), root / "rows.arrow")
    return root


def read(path: Path, scratch: Path) -> str:
    """Read all rows; with what message they were refused, or nothing.

    An error says which file, and quotes none of its texts, unless they are names of columns now.
    """
    data, form = own(str(path)), LabelledTexts("single_label", ("good", "bad"))
    names: list[str] = []
    refused = ""
    with only_named_errors():
        try:
            with open_tables(data.source, scratch) as tables:
                names = column_names(tables)
                list(read_rows(tables, data, form, []))
        except FedtorchError as error:
            refused = str(error)
            assert path.name in refused, error
            assert CANARY not in refused or any(CANARY in name for name in names), error
            raise
    return refused


def flipped(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes changed, so that lengths and offsets stay where they are; or torn."""
    if draw(st.integers(0, 3)) == 0:
        return torn(draw, data)
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(changed) - 1))
        changed[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, changed[place] ^ 1, changed[place] ^ 0x80]))
    return bytes(changed)


def try_file(draw: st.DrawFn, whole: Path, folder: Path) -> None:
    name = draw(st.sampled_from(PLAIN + BINARY))
    path = folder / name
    if name == "saved":
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole / name, path)
        place = draw(st.sampled_from(sorted(path.iterdir())))
        if place.suffix == ".json" and draw(st.booleans()):
            place.write_bytes(text_of(spoilt(draw, json.loads(place.read_bytes()))))
        else:
            place.write_bytes(flipped(draw, place.read_bytes()))
    elif name == "rows.jsonl" and draw(st.booleans()):
        place_of = draw(st.integers(0, len(ROWS) - 1))
        rows: list[Any] = [*ROWS]
        rows[place_of] = spoilt(draw, rows[place_of])
        path.write_bytes(b"".join(text_of(row) + b"\n" for row in rows))
    else:
        path.write_bytes(flipped(draw, (whole / name).read_bytes()))
    read(path, folder)


CORPUS: dict[str, tuple[str, bytes]] = {
    "an object as client's name was its repr": ("rows.jsonl", b'{"text": "a", "label": "good", "home": {}}\n'),
    "true as client's name was True": ("rows.jsonl", b'{"text": "a", "label": "good", "home": true}\n'),
    "inf as client's name was inf": ("rows.jsonl", b'{"text": "a", "label": "good", "home": Infinity}\n'),
    "a label of 100 kB was quoted whole": ("rows.jsonl", b'{"text": "a", "label": "%s", "home": "a"}' % (b"x" * 10**5)),
    "a header of 100 kB was quoted whole": ("rows.csv", b"%s,%s\n1,2\n" % (b"x" * 10**5, b"x" * 10**5)),
    "a header that is not UTF-8 was in a message that no log takes": ("rows.csv", b"te\x80t,label,home\na,good,a\n"),
    "a header whose line end is a NUL": ("rows.csv", b"text,label,home\0%s,good,a\n" % CANARY.encode()),
    "the first row of a file without a header was quoted": ("rows.csv", b"%s,good,a\n" % (CANARY.encode() * 3)),
    "a header of a row with a terminal's commands": ("rows.tsv", b"text\x1b[2J\tlabel\thome\na\tgood\ta\n"),
    "a last line that was cut": ("rows.jsonl", b'{"text": "a", "label": "good", "home": "a"}\n{"text": "b", "lab'),
    "brackets thousands deep": ("rows.jsonl", b"[" * 100_000 + b"\n"),
    "a number of thousands of digits": ("rows.jsonl", b'{"text": ' + b"9" * 5000 + b"}\n"),
    "half of a surrogate pair": ("rows.jsonl", b'{"text": "\\ud800", "label": "good", "home": "a"}\n'),
    "null in place of a text": ("rows.jsonl", b'{"text": null, "label": "good", "home": "a"}\n'),
    "an array that does not end": ("rows.json", b'[{"text": "a", "label": "good", "home": "a"}, '),
    "no Arrow file at all": ("rows.arrow", b"ARROW1\0\0"),
    "no Parquet file at all": ("rows.parquet", b"PAR1PAR1"),
}  # fmt: skip
"""What it once broke -> a file."""


@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_stays_refused(what: str, tmp_path: Path) -> None:
    name, data = CORPUS[what]
    (tmp_path / name).write_bytes(data)
    assert 0 < len(read(tmp_path / name, tmp_path)) < 700


@cases(50)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data: Any, whole: Path, tmp_path: Path) -> None:
    try_file(data.draw, whole, tmp_path)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_damaged_files_are_read_or_refused(data: Any, whole: Path, tmp_path: Path) -> None:
    try_file(data.draw, whole, tmp_path)
