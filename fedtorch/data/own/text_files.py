"""Rows of JSON, CSV, TSV and plain text files as they stand there, each with its line.

The `datasets` library reads these too, but not as written (*measured*, 5.2): a text that looks like a date becomes a
date and its spelling is lost, a whole number of 20 digits becomes a float, columns of some names make a file an "agent
trace", bytes that are not UTF-8 surface later without a line, and cells of a CSV are guessed to be numbers or missing.
"""

from __future__ import annotations

import csv
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.core.shown import plain
from fedtorch.data.own.conll import Sentences, counts
from fedtorch.data.own.nested import MOST_PATHS, leaves
from fedtorch.data.own.text_form import TextForm, bad_byte, no_text_file, not_decoded, separator_of

Found = Iterator[tuple[int, Any]]
"""(line, the row as a dict, or a ValueError that says what is wrong with it)"""


class TextRows:
    """The rows of a file, read again at every iteration: what is kept in memory is a number per row.

    Iterating gives a dict per row, or in its place a ValueError that says why there is none.
    """

    def __init__(self, file: Path, form: TextForm | None = None) -> None:
        """Raises DataError where the file as a whole cannot be read."""
        self._file, form = file, form or TextForm()
        ending = file.suffix.lower()
        self._read = _conll if form.format == "conll" and ending not in (".json", ".jsonl") else READERS[ending]
        self._lines = array("q")
        try:
            if kind := no_text_file(file):
                raise DataError(f"{file} is {kind}")
            if self._read is _cells:
                form = replace(form, separator=separator_of(file, form))
            self.form = form
            """how it is read; of a table with the separator that was found"""
            names: dict[str, None] = dict.fromkeys(_header(file, form)) if self._read is _cells else {}
            problem, inner = "", dict[str, None]()
            for line, row in self._read(file, form):
                self._lines.append(line)
                if isinstance(row, dict):
                    names.update(dict.fromkeys(row))
                    if len(inner) < MOST_PATHS:
                        inner.update(dict.fromkeys(leaves(row)))
                elif not problem:
                    problem = f"{file}:{line}: {row}"
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error.strerror}); check its rights") from None
        except UnicodeError as error:
            raise DataError(
                f"{file}:{len(self._lines) + 1} or after: not {form.named} ({type(error).__name__}); correct "
                "task.data.encoding"
            ) from None
        if problem and not names:
            raise DataError(problem)
        self.column_names = list(names)
        """of all rows, in order of their first appearance"""
        self.nested = list(inner)
        """paths to what lies within columns that hold objects, such as `body.text`"""

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[dict[str, Any] | ValueError]:
        return (row for _, row in self._read(self._file, self.form))

    def line(self, index: int) -> int:
        """The line at which row `index` begins, from 1."""
        return self._lines[index]


def _lines(file: Path, form: TextForm) -> Iterator[tuple[int, bytes]]:
    """Lines with something in them, as UTF-8, without their ends and the mark of UTF-8."""
    with _as_utf8(file, form) as lines:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, line.rstrip(b"\r\n")


@contextmanager
def _as_utf8(file: Path, form: TextForm) -> Iterator[Iterable[bytes]]:
    """The lines of a file in UTF-8; a byte that another encoding cannot have stays, and is then none of UTF-8."""
    if form.is_utf8:
        with file.open("rb") as lines:
            yield lines
    else:
        yield (line.encode("utf-8", "surrogateescape") for line in form.lines(file, newline="\n"))


def _json_lines(file: Path, form: TextForm) -> Found:
    return ((number, _object(line, form)) for number, line in _lines(file, form))


def _json(file: Path, form: TextForm) -> Found:
    """An array of objects, or an object a line."""
    start = next((line.lstrip()[:1] for _, line in _lines(file, form)), b"")
    return _array(file, form) if start == b"[" else _json_lines(file, form)


def _array(file: Path, form: TextForm) -> Found:
    try:
        with _as_utf8(file, form) as lines:
            text = b"".join(lines).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}:{line}: {_undecoded(error, form)}") from None
    decoder, place, line, counted = json.JSONDecoder(), text.index("[") + 1, 1, 0
    while True:
        place = _after_blanks(text, place)
        if text[place : place + 1] == "]":
            return
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:  # what follows cannot be found any more
            reason = f"{error.msg}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "too deep"
            raise DataError(f"{file}:{line}: not JSON ({reason}); expected an array of objects") from None
        yield line, _checked(value, has_escapes=True)
        place = _after_blanks(text, place)
        if text[place : place + 1] not in (",", "]"):
            line += text.count("\n", counted, place)
            raise DataError(f"{file}:{line}: not JSON (no comma between two objects); expected an array of objects")
        place += text[place] == ","


def _after_blanks(text: str, place: int) -> int:
    while text[place : place + 1] in (" ", "\n", "\r", "\t"):
        place += 1
    return place


def _cells(file: Path, form: TextForm) -> Found:
    """Every cell is a string, `NA` and `null` too."""
    names = _header(file, form)
    for line, cells in _records(file, form):
        if isinstance(cells, ValueError):
            yield line, cells
        elif len(cells) != len(names):
            yield line, ValueError(f"{len(cells)} cells, the header has {len(names)}; quote cells with separators")
        else:
            yield line, dict(zip(names, cells, strict=True))


def _header(file: Path, form: TextForm) -> list[str]:
    """Names of the columns; [] of an empty file."""
    names = next((cells for _, cells in _records(file, form, header=True)), [])
    if isinstance(names, ValueError):
        raise DataError(f"{file}:1: the header: {names}")
    if names and names[0].lstrip().startswith(('{"', '[{"')):
        raise DataError(f"{file}:1: JSON in place of a header; let the file's name end in .jsonl (.json: an array)")
    if any(plain(name) != name for name in (cell.replace("\r\n", "\n") for cell in names)):
        raise DataError(f"{file}:1: the header has a control character; is the file a table, and its first line whole?")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{file}:1: the header has the column `{twice[0][:40]}` twice; rename one")
    return names


def _records(file: Path, form: TextForm, header: bool = False) -> Iterator[tuple[int, list[str] | ValueError]]:
    """(line, cells) of all records after the header, or from it on; blank lines are none."""
    csv.field_size_limit(sys.maxsize)  # of the process; 128 KiB by default
    bad = list[str]()
    reader = csv.reader(_watched(form.lines(file), form, bad), delimiter=form.separator or ",", strict=True)
    begins = 1
    while True:
        try:
            cells: list[str] | ValueError = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = ValueError(f"not a row of a table ({error}); check the quotes")
        if bad:
            cells = ValueError(bad[0])
            bad.clear()
        if cells and header:
            yield begins, cells
        header = header or bool(cells)
        begins = reader.line_num + 1


def _watched(lines: Iterable[str], form: TextForm, bad: list[str]) -> Iterator[str]:
    """The lines. bad: gets what is wrong with bytes that cannot be decoded."""
    for number, line in enumerate(lines, start=1):
        if problem := bad_byte(line, form):
            bad.append(f"line {number}, {problem}")
        yield line


def _text(file: Path, form: TextForm) -> Found:
    for number, line in _lines(file, form):
        try:
            yield number, {"text": line.decode("utf-8")}
        except UnicodeDecodeError as error:
            yield number, ValueError(_undecoded(error, form))


def _conll(file: Path, form: TextForm) -> Found:
    """A sentence a row: `tokens`, and `tags` from the last column."""
    return iter(Sentences(form.lines(file, newline="\n"), form, counts(form.lines(file, newline="\n"))))


def _object(line: bytes, form: TextForm) -> Any:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return ValueError(_undecoded(error, form))
    except json.JSONDecodeError as error:
        return ValueError(f"not JSON ({error.msg}, column {error.colno}); expected one JSON object a line")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        return ValueError(f"not usable JSON ({type(error).__name__}); expected one JSON object a line")
    return _checked(value, has_escapes=b"\\ud" in line or b"\\uD" in line)


def _checked(value: Any, *, has_escapes: bool) -> Any:
    if not isinstance(value, dict):
        return ValueError(f"a JSON {type(value).__name__}, expected an object")
    if has_escapes:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):  # no tokenizer takes such a text
            return ValueError("half of a surrogate pair (\\ud…) in it; write the whole character")
    return value


def _undecoded(error: UnicodeDecodeError, form: TextForm) -> str:
    start = error.start - error.object.rfind(b"\n", 0, error.start)
    return not_decoded(start, error.object[error.start], form)


READERS: dict[str, Callable[[Path, TextForm], Found]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _cells,
    ".tsv": _cells,
    ".txt": _text,
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2"), _conll),
}
"""Ending of a file -> its reader."""
