"""Content of the columns of a source, from rows spread evenly over all of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from fedtorch.data.own.source import Table, column_names, rows_of
from fedtorch.data.own.text_form import is_comma_number, list_in_text

LOOKED_AT = 5000
"""Rows, about, of a larger source: drawn from all of it, for files are often sorted by label or client, or have them in
turn."""

Kind = Literal[
    "text", "whole", "number", "flag", "words", "numbers", "turns", "spans", "object", "objects", "other", "empty"
]

MOST_ROWS = 0.9
"""Of a column whose values are of several kinds: the part that has to be of one kind, so that the others are strays."""
_LISTS: tuple[Kind, ...] = ("words", "numbers", "spans")
_MIXED: dict[frozenset[str], Kind] = {
    frozenset(("whole", "number")): "number",
    frozenset(("whole", "text")): "text",  # such as the labels 1 and "a", which are read as texts
}
"""Two kinds in a column -> its kind."""


@dataclass
class Column:
    """A column as far as it was looked at."""

    name: str
    """as in the file's head, or the key of its objects"""
    kind: Kind = "empty"
    """text; whole, number; flag: true or false; words, numbers: lists of them; turns: a list of {role, content};
    spans: a list of {start, end, label}; object: see `nested`; objects: a list of others; other: none of these, or
    several. A cell of a table that holds a list as JSON is that list"""
    kinds: Counter[Kind] = field(default_factory=Counter)
    """of its values -> how often"""
    missing: int = 0
    """rows without a value"""
    values: Counter[str] = field(default_factory=Counter)
    """texts, numbers or members of lists -> how often"""
    sizes: list[int] = field(default_factory=list)
    """words of each text (of a list of turns in all of them; of anything else as JSON), or members of each list"""
    tokens: list[int] = field(default_factory=list)
    """of each text, or of all texts in a list, as a vocabulary of usual size would have them; see `tokens_of`"""
    begins_inside: bool = False
    """is there a list with `I-KIND` where nothing of the kind stands before it?"""

    @property
    def distinct(self) -> int:
        """How many different values there are."""
        return len(self.values)

    @property
    def words(self) -> float:
        """Words of a text on average."""
        return sum(self.sizes) / len(self.sizes) if self.sizes else 0.0

    @property
    def parts(self) -> frozenset[str]:
        """The words that its name is made of: `hospitalId`, `hospital_id` -> hospital, id."""
        spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name)
        return frozenset(part for part in re.split(r"[\W_]+", spread.casefold()) if part)

    @property
    def is_numeric(self) -> bool:
        """Are all values numbers, be it as texts (in a CSV file all are)?"""
        return self.kind in ("whole", "number") or (self.kind == "text" and all(map(_is_number, self.values)))

    @property
    def has_fractions(self) -> bool:
        """Are some of the values, which are numbers, no whole ones?"""
        return self.has_commas or any(not float(value).is_integer() for value in self.values)

    @property
    def has_commas(self) -> bool:
        """Are all values numbers, some of them with a comma before their decimals?"""
        texts = self.values if self.kind == "text" else ()
        return any("," in text for text in texts) and all(map(is_comma_number, texts))

    @property
    def short(self) -> str:
        """The last part of a path."""
        return self.name.rpartition(".")[2].casefold() or self.name.casefold()

    def share_below(self, share: float) -> int:
        """A number of tokens that so many of the rows do not exceed."""
        return sorted(self.tokens)[min(len(self.tokens) - 1, int(share * len(self.tokens)))] if self.tokens else 0

    def add(self, value: Any) -> None:
        """Look at one more row."""
        if value is None or value == "":
            self.missing += 1
        elif value not in ([], "[]"):  # a row without labels or spans is one, whatever the others hold
            self._add(value)

    def leave_out_strays(self) -> None:
        """Take the kind of nine rows of ten, where the others are what a task will leave out."""
        kind, count = self.kinds.most_common(1)[0] if self.kinds else (self.kind, 0)
        if self.kind == "other" and count >= MOST_ROWS * self.kinds.total():
            self.kind = kind

    def _add(self, value: Any) -> None:
        may_be_list = not self.kinds or any(kind in self.kinds for kind in _LISTS)
        if may_be_list and _kind(listed := list_in_text(value)) in _LISTS:
            value = listed
        elif isinstance(value, float) and value.is_integer():
            value = int(value)  # as tables have whole numbers in columns where some are missing
        kind = _kind(value)
        self.kinds[kind] += 1
        self.kind = _MIXED.get(frozenset((kind, self.kind)), kind if self.kind in (kind, "empty") else "other")
        if kind == "text":
            self.sizes.append(len(value.split()))
            self.tokens.append(tokens_of(value))
        elif kind == "turns":
            self.sizes.append(sum(_words(said) for turn in value for said in turn.values()))
            self.tokens.append(sum(tokens_of(said) + 2 for turn in value for said in turn.values()))
        elif kind in ("words", "numbers"):
            self.sizes.append(len(value))
            self.tokens.append(sum(tokens_of(str(one)) for one in value))
            self.begins_inside |= kind == "words" and _begins_inside(value)
        elif kind in ("objects", "other"):
            self.sizes.append(_words(value))
            self.tokens.append(tokens_of(value))
        if kind not in ("turns", "spans", "object", "objects", "other"):
            self.values.update(map(str, value) if isinstance(value, list) else [str(value)])


@dataclass
class Looked:
    """A source as far as it was looked at."""

    columns: dict[str, Column]
    """name -> column"""
    rows: int = 0
    """in all files"""
    seen: int = 0
    """rows that were looked at"""
    values: dict[str, set[str]] = field(default_factory=dict)
    """of some columns all values in all rows, as texts"""
    problems: list[str] = field(default_factory=list)
    """rows that cannot be read, with file and line"""


def look(tables: Sequence[Table], whole: Container[str]) -> Looked:
    """Look at a source. Of columns with one of the words `whole` in their name all values are kept."""
    found = Looked({name: Column(name) for name in column_names(tables)})
    found.values = {name: set() for name, column in found.columns.items() if any(p in whole for p in column.parts)}
    step = max(1, -(-sum(len(table.rows) for table in tables) // LOOKED_AT))
    every, draw = {name: name for name in found.columns}, Random(0)
    for table in tables:
        for index, values in rows_of(table, every):
            found.rows += 1
            if isinstance(values, ValueError):
                found.problems.append(f"{table.where(index)}: {values}")
                continue
            for name, known in found.values.items():
                if values[name] is not None and str(values[name]).strip():
                    known.add(str(values[name]))
            if found.rows == 1 or draw.random() * step < 1:
                found.seen += 1
                for name, column in found.columns.items():
                    column.add(values[name])
    for column in found.columns.values():
        column.leave_out_strays()
    objects = {name for name, column in found.columns.items() if column.kind == "object"}
    found.columns = {name: column for name, column in found.columns.items() if name not in objects}
    return found


def tokens_of(said: Any) -> int:
    """About the tokens of a text; of calls and tools, which templates write as JSON, too.

    Three to two words, or one to five letters where words are long; one for each character of scripts without blanks.
    """
    if said is None:
        return 0
    if not isinstance(said, str):
        return len(json.dumps(said, default=str)) // 2
    unspaced = 0 if said.isascii() else sum(char >= "\u0e00" for char in said)
    return max(int(1.5 * len(said.split())), (len(said) - unspaced) // 5) + unspaced


def _begins_inside(tags: Sequence[str]) -> bool:
    return any(tag[:2] == "I-" and before[2:] != tag[2:] for before, tag in zip(["O", *tags[:-1]], tags, strict=True))


def _words(said: Any) -> int:
    """Words of a text; of calls and tools, which templates write as JSON, about as many as their tokens come to."""
    return (
        len(said.split()) if isinstance(said, str) else 0 if said is None else len(json.dumps(said, default=str)) // 3
    )


def _kind(value: Any) -> Kind:
    if isinstance(value, dict):  # spans as columns, which some versions of `datasets` make of a list of objects
        as_columns = {"start", "end"} <= value.keys() and all(isinstance(one, list) for one in value.values())
        return "spans" if as_columns else "object"
    if isinstance(value, list):
        if _are_spans(value):
            return "spans"
        if all(isinstance(one, dict) and "role" in one and {"content", "tool_calls"} & one.keys() for one in value):
            return "turns"
        if all(isinstance(one, str) for one in value):
            return "words"
        if all(isinstance(one, dict) for one in value):
            return "objects"
        return "numbers" if all(_is_whole(one) for one in value) else "other"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "flag"
    return "whole" if isinstance(value, int) else "number" if isinstance(value, float) else "other"


def _are_spans(value: Any) -> bool:
    return isinstance(value, list) and all(
        {"start", "end"} <= one.keys() and any(isinstance(kind, str) for kind in one.values())
        if isinstance(one, dict)
        else isinstance(one, list) and len(one) == 3 and _is_whole(one[0]) and _is_whole(one[1])
        for one in value
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
