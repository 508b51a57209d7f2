"""How text files are written: their encoding, what separates cells, and files that are not what their ending says."""

from __future__ import annotations

import codecs
import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

SEPARATORS = (",", ";", "\t", "|")
"""What is tried where nothing is said."""
_LOOKED_AT = 200  # records of a file
_GROUPED = re.compile(r"\s*[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?\s*")
_OTHER_KINDS = {
    b"PK\x03\x04": "a ZIP archive, as Excel files are; save it as CSV, or unpack it",
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"ARROW1": "an Arrow file; let its name end in .arrow",
    b"%PDF": "a PDF; give its text",
    b"\xd0\xcf\x11\xe0": "an Office file; save it as CSV",
}
_NO_TEXT = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"}


@dataclass(frozen=True)
class TextForm:
    """How the text files of a source are written; of other files nothing is asked."""

    encoding: str = "utf-8"
    """a codec of Python"""
    separator: str | None = None
    """of the cells of .csv and .tsv files; None: see `separator_of`"""
    format: Literal["conll"] | None = None
    """what all of them are; None: as their endings say"""

    def __post_init__(self) -> None:
        """Raises ValueError where there is no such encoding, or a separator that cannot be one."""
        if _codec(self.encoding) is None:
            raise ValueError(
                f"task.data.encoding is {self.encoding[:40]!r}, which Python knows no encoding of texts by; name one, "
                "such as utf-8, cp1252, latin-1 or utf-16"
            )
        mark = self.separator
        if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in '"\r\n\0'):
            raise ValueError(
                f'task.data.separator is {mark[:20]!r} but should be one character, such as ",", ";", "|" or '
                '"\\t" in double quotes'
            )

    @property
    def is_utf8(self) -> bool:
        """Is it the usual encoding?"""
        return _codec(self.encoding) in ("utf-8", "utf-8-sig")

    @property
    def named(self) -> str:
        """The encoding for messages."""
        return "UTF-8" if self.is_utf8 else self.encoding

    def lines(self, file: Path, newline: str = "") -> Iterator[str]:
        """All lines with their ends; bytes that cannot be decoded come as lone surrogates.

        newline: see `open`. Raises UnicodeError where an encoding of several bytes cannot go on.
        """
        encoding = "utf-8-sig" if self.is_utf8 else self.encoding
        with file.open("r", encoding=encoding, errors="surrogateescape", newline=newline) as lines:
            yield from lines


def _codec(name: str) -> str | None:
    """The usual name of an encoding of texts; None: there is none."""
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    is_text = getattr(found, "_is_text_encoding", True) and found.name not in _NO_TEXT
    return found.name if is_text else None


def usual_separator(file: Path) -> str:
    """The one that a file's ending promises."""
    return "\t" if file.suffix.lower() == ".tsv" else ","


def separator_of(file: Path, form: TextForm) -> str:
    """Separator of a file's cells: what the form says, or what its first records show.

    Of the separators that cut the header into several cells it is the one by which most records have as many; the one
    that the ending promises where that is as good. (`csv.Sniffer` looks at letters too, and chooses some of them.)
    """
    usual = usual_separator(file)
    if form.separator is not None:
        return form.separator
    found = {mark: agreement for mark in (usual, *SEPARATORS) if (agreement := _agreement(file, form, mark))}
    return max(found, key=lambda mark: (found[mark], mark == usual), default=usual)


def _agreement(file: Path, form: TextForm, separator: str) -> float:
    """The share of the first records that have as many cells as the header; 0 where that is one cell."""
    sizes = []
    csv.field_size_limit(sys.maxsize)  # of the process; 128 KiB by default
    try:
        lines = islice(form.lines(file), 10 * _LOOKED_AT)  # where quotes do not fit a record is all that follows
        for record in islice(csv.reader(lines, delimiter=separator), _LOOKED_AT):
            if record:
                sizes.append(len(record))
    except (csv.Error, UnicodeError):
        pass
    if not sizes or sizes[0] < 2:
        return 0.0
    return sum(size == sizes[0] for size in sizes) / len(sizes)


def first_bad_byte(file: Path, form: TextForm) -> str:
    """Where a file cannot be decoded, and which byte is there; empty: it can."""
    number = 0
    try:
        for number, line in enumerate(form.lines(file), start=1):
            if problem := bad_byte(line, form):
                return f"line {number}, {problem.partition(';')[0]}"
    except UnicodeError as error:
        return f"after line {number} ({type(error).__name__})"
    return ""


def is_decoded(file: Path, form: TextForm) -> bool:
    """Is all of a file text in that encoding?"""
    return not first_bad_byte(file, form)


def bad_byte(text: str, form: TextForm) -> str:
    """Describe a line that has a lone surrogate in place of a byte; empty if it has none."""
    try:
        text.encode()
        return ""
    except UnicodeEncodeError as error:
        before, value = text[: error.start], ord(text[error.start])
    if not 0xDC80 <= value <= 0xDCFF:  # half of a pair, which another encoding may have had
        return f"half of a surrogate pair at character {len(before) + 1}; write the whole character"
    start = len(before.encode()) if form.is_utf8 else len(before)
    return not_decoded(start + 1, value - 0xDC00, form)


def not_decoded(place: int, value: int, form: TextForm) -> str:
    """Say which byte cannot be read, and what to do. place: of the byte in its line, from 1."""
    if form.is_utf8 and place == 1 and value in (0xFE, 0xFF):
        advice = "files that begin so are often UTF-16: set task.data.encoding to utf-16, or save the file as UTF-8"
    elif form.is_utf8:
        advice = "save the file as UTF-8, or name its encoding in task.data.encoding (on Windows often cp1252)"
    else:
        advice = "correct task.data.encoding, or save the file as UTF-8 and leave that out"
    return f"byte {place} is not {form.named} (0x{value:02x}); {advice}"


def no_text_file(file: Path) -> str:
    """Name a file that is no text by its first bytes, and what to do; empty: none of the usual ones."""
    with file.open("rb") as opened:
        start = opened.read(8)
    return next((kind for mark, kind in _OTHER_KINDS.items() if start.startswith(mark)), "")


def number_text(value: Any, decimal: str) -> Any:
    """A number in a text as Python reads it: `3,5` where the decimal mark is a comma, points between thousands.

    Raises:
        ValueError: points stand elsewhere in it, so that it could be read in two ways.
    """
    if decimal != "," or not isinstance(value, str):
        return value
    if not is_comma_number(value):
        raise ValueError("no number with a comma")
    return value.replace(".", "").replace(",", ".")


def is_comma_number(text: str) -> bool:
    """Is it a number with a comma before its decimals, if it has any, and points between thousands alone?"""
    return _GROUPED.fullmatch(text) is not None


def list_in_text(value: Any) -> Any:
    """A list that a cell of a table holds as JSON; anything else stays as it is."""
    if not (isinstance(value, str) and value.lstrip().startswith("[")):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, list) else value
