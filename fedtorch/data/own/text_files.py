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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.core.shown import plain

Found = Iterator[tuple[int, Any]]
"""(line, the row as a dict, or a ValueError that says what is wrong with it)"""


class TextRows:
    """The rows of a file, read again at every iteration: what is kept in memory is a number per row.

    Iterating gives a dict per row, or in its place a ValueError that says why there is none.
    """

    def __init__(self, file: Path) -> None:
        """Raises DataError where the file as a whole cannot be read."""
        self._file = file
        self._read = READERS[file.suffix.lower()]
        self._lines = array("q")
        try:
            names: dict[str, None] = dict.fromkeys(_header(file)) if self._read is _cells else {}
            problem = ""
            for line, row in self._read(file):
                self._lines.append(line)
                if isinstance(row, dict):
                    names.update(dict.fromkeys(row))
                elif not problem:
                    problem = f"{file}:{line}: {row}"
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error.strerror}); check its rights") from None
        if problem and not names:
            raise DataError(problem)
        self.column_names = list(names)
        """of all rows, in order of their first appearance"""

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[dict[str, Any] | ValueError]:
        return (row for _, row in self._read(self._file))

    def line(self, index: int) -> int:
        """The line at which row `index` begins, from 1."""
        return self._lines[index]


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with something in them, without their ends and the mark of UTF-8."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, line.rstrip(b"\r\n")


def _json_lines(file: Path) -> Found:
    return ((number, _object(line)) for number, line in _lines(file))


def _json(file: Path) -> Found:
    """An array of objects, or an object a line."""
    with file.open("rb") as lines:
        start = lines.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return _array(file) if start == b"[" else _json_lines(file)


def _array(file: Path) -> Found:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}:{line}: {_not_utf8(error)}") from None
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


def _cells(file: Path) -> Found:
    """Every cell is a string, `NA` and `null` too."""
    names = _header(file)
    for line, cells in _records(file):
        if isinstance(cells, ValueError):
            yield line, cells
        elif len(cells) != len(names):
            yield line, ValueError(f"{len(cells)} cells, the header has {len(names)}; quote cells with separators")
        elif any("\udc80" <= char <= "\udcff" for cell in cells if not cell.isascii() for char in cell):
            yield line, ValueError("not UTF-8; save the file as UTF-8")
        else:
            yield line, dict(zip(names, cells, strict=True))


def _header(file: Path) -> list[str]:
    """Names of the columns; [] of an empty file."""
    names = next((cells for _, cells in _records(file, header=True)), [])
    if isinstance(names, ValueError):
        raise DataError(f"{file}:1: {names}")
    if any("\udc80" <= char <= "\udcff" for name in names for char in name):
        raise DataError(f"{file}:1: the header is not UTF-8; save the file as UTF-8")
    if any(plain(name) != name for name in (cell.replace("\r\n", "\n") for cell in names)):
        raise DataError(f"{file}:1: the header has a control character; is the file a table, and its first line whole?")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{file}:1: the header has the column `{twice[0][:40]}` twice; rename one")
    return names


def _records(file: Path, header: bool = False) -> Iterator[tuple[int, list[str] | ValueError]]:
    """(line, cells) of all records after the header, or from it on; blank lines are none."""
    csv.field_size_limit(sys.maxsize)  # of the process; 128 KiB by default
    separator = "\t" if file.suffix.lower() == ".tsv" else ","
    with file.open("r", encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        reader = csv.reader(lines, delimiter=separator, strict=True)
        begins = 1
        while True:
            try:
                cells: list[str] | ValueError = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = ValueError(f"not a row of a table ({error}); check the quotes")
            if cells and header:
                yield begins, cells
            header = header or bool(cells)
            begins = reader.line_num + 1


def _text(file: Path) -> Found:
    for number, line in _lines(file):
        try:
            yield number, {"text": line.decode("utf-8")}
        except UnicodeDecodeError as error:
            yield number, ValueError(_not_utf8(error))


def _object(line: bytes) -> Any:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return ValueError(_not_utf8(error))
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


def _not_utf8(error: UnicodeDecodeError) -> str:
    start = error.start - error.object.rfind(b"\n", 0, error.start)
    return f"byte {start} is not UTF-8; save the file as UTF-8"


READERS: dict[str, Callable[[Path], Found]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _cells,
    ".tsv": _cells,
    ".txt": _text,
}
"""Ending of a file -> its reader."""
