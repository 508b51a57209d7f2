"""Content of the columns of a source, from rows spread evenly over all of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedtorch.data.own.source import Table, column_names, rows_of

LOOKED_AT = 5000
"""Rows at most; of a larger source every n-th, for files are often sorted by label or client."""

Kind = Literal["text", "whole", "number", "flag", "words", "numbers", "turns", "other", "empty"]


@dataclass
class Column:
    """A column as far as it was looked at."""

    name: str
    """as in the file's head, or the key of its objects"""
    kind: Kind = "empty"
    """text; whole, number; flag: true or false; words, numbers: lists of them; turns: a list of {role, content};
    other: none of these, or several"""
    missing: int = 0
    """rows without a value"""
    values: Counter[str] = field(default_factory=Counter)
    """texts, numbers or members of lists -> how often"""
    sizes: list[int] = field(default_factory=list)
    """words of each text (of a list of turns in all of them; of anything else as JSON), or members of each list"""

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

    def share_below(self, share: float) -> int:
        """A size that so many of the rows do not exceed."""
        return sorted(self.sizes)[min(len(self.sizes) - 1, int(share * len(self.sizes)))] if self.sizes else 0

    def add(self, value: Any) -> None:
        """Look at one more row."""
        if value is None or value == "" or value == []:
            self.missing += 1
            return
        kind = _kind(value)
        mixed: set[Kind] = {kind, self.kind}
        self.kind = kind if mixed <= {kind, "empty"} else "number" if mixed == {"whole", "number"} else "other"
        if kind == "text":
            self.sizes.append(len(value.split()))
        elif kind == "turns":
            self.sizes.append(sum(_words(said) for turn in value for said in turn.values()))
        elif kind in ("words", "numbers"):
            self.sizes.append(len(value))
        elif kind == "other":
            self.sizes.append(_words(value))
        if kind not in ("turns", "other"):
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
    every = {name: name for name in found.columns}
    for table in tables:
        for index, values in rows_of(table, every):
            found.rows += 1
            if isinstance(values, ValueError):
                found.problems.append(f"{table.where(index)}: {values}")
                continue
            for name, known in found.values.items():
                if values[name] is not None and str(values[name]).strip():
                    known.add(str(values[name]))
            if (found.rows - 1) % step == 0:
                found.seen += 1
                for name, column in found.columns.items():
                    column.add(values[name])
    return found


def _words(said: Any) -> int:
    """Words of a text; of calls and tools, which templates write as JSON, about as many as their tokens come to."""
    return (
        len(said.split()) if isinstance(said, str) else 0 if said is None else len(json.dumps(said, default=str)) // 3
    )


def _kind(value: Any) -> Kind:
    if isinstance(value, list):
        if all(isinstance(one, dict) and "role" in one and {"content", "tool_calls"} & one.keys() for one in value):
            return "turns"
        if all(isinstance(one, str) for one in value):
            return "words"
        return "numbers" if all(_is_whole(one) for one in value) else "other"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "flag"
    return "whole" if isinstance(value, int) else "number" if isinstance(value, float) else "other"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
