"""Files with a word and its tag a line, and an empty line between sentences, as of the CoNLL tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fedtorch.data.own.text_form import TextForm, bad_byte

DOCUMENT = "-DOCSTART-"


@dataclass
class Sentences:
    """The sentences of such a file: (line of the first word, {tokens, tags}), or a ValueError in place of a row. Words
    alone have no tags.

    Columns are separated by tabs, or by blanks where a line has no tab; the tag is in the last. Lines that begin with
    `-DOCSTART-` are no words, nor are lines before a sentence that begin with `#` and have other columns.
    """

    lines: Iterable[str]
    """of the file"""
    form: TextForm
    """for messages"""
    is_counted: bool = False
    """is the first column the word's number, and the word in the second? See `counts`"""
    columns: int = field(default=0, init=False)
    """of the lines; 0: none was read yet"""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        begins, words = 0, list[list[str]]()
        problem = ""
        for number, line in enumerate(self.lines, start=1):
            cells = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
            if not line.strip() or cells[0] == DOCUMENT:
                if words or problem:
                    yield begins, ValueError(problem) if problem else self._row(words)
                begins, words, problem = 0, [], ""
                continue
            if not begins and cells[0].startswith("#") and len(cells) != (self.columns or 2):
                continue
            begins = begins or number
            self.columns = self.columns or len(cells)
            problem = problem or self._problem(number, line, cells)
            words.append(cells)
        if words or problem:
            yield begins, ValueError(problem) if problem else self._row(words)

    def _problem(self, number: int, line: str, cells: list[str]) -> str:
        if bad := bad_byte(line, self.form):
            return f"line {number}, {bad}"
        if len(cells) != self.columns:
            return f"line {number} has {len(cells)} columns, the first one {self.columns}; give all lines as many"
        if not (cells[0].strip() and cells[-1].strip()):
            return f"line {number} has an empty column in place of a word or a tag"
        return ""

    def _row(self, words: list[list[str]]) -> dict[str, list[str]]:
        found = {"tokens": [cells[1 if self.is_counted else 0].strip() for cells in words]}
        return found | ({"tags": [cells[-1].strip() for cells in words]} if self.columns > 1 else {})


def counts(lines: Iterable[str]) -> bool:
    """Does the first of three columns or more count the words 1, 2, 3, as in the first sentence of several words?"""
    first = list[str]()
    for line in lines:
        cells = line.split()
        if len(cells) > 2 and not cells[0].startswith("#"):
            first.append(cells[0])
        elif not cells and len(first) > 1:
            break
        elif not cells:
            first = []
    return len(first) > 1 and first == [str(place) for place in range(1, len(first) + 1)]


def looks_like_conll(lines: Iterable[str]) -> bool:
    """Does a text file have a word and a tag of a span on every line, and empty lines between sentences?"""
    cells = [line.split() for line in lines]
    words = [row for row in cells if row and row[0] != DOCUMENT and not row[0].startswith("#")]
    tags = [row[-1] for row in words]
    return (
        len(words) < len(cells)
        and {len(row) for row in words} in ({size} for size in range(2, 12))
        and all(tag == "O" or tag[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") for tag in tags)
        and len(set(tags)) > 1
    )
