"""What the columns of a source hold, from rows spread evenly over all of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedtorch.data.own.source import Table, column_names

LOOKED_AT = 5000
"""Rows at most; of a larger source every n-th, for files are often sorted by label or client."""

Kind = Literal["text", "whole", "number", "flag", "words", "numbers", "turns", "other", "empty"]


@dataclass
class Column:
    """A column as far as it was looked at."""

    name: str
    kind: Kind = "empty"
    """text; whole, number; flag: true or false; words, numbers: lists of them; turns: a list of {role, content};
    other: none of these, or several"""
    missing: int = 0
    """rows without a value"""
    values: Counter[str] = field(default_factory=Counter)
    """texts, numbers or members of lists -> how often"""
    sizes: list[int] = field(default_factory=list)
    """words of each text (of a list of turns in all of them), or members of each list"""

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
            self.sizes.append(sum(len(str(turn["content"]).split()) for turn in value))
        elif kind in ("words", "numbers"):
            self.sizes.append(len(value))
        if kind != "turns":
            self.values.update(map(str, value) if isinstance(value, list) else [str(value)])


def look(tables: Sequence[Table]) -> tuple[int, dict[str, Column]]:
    """(rows that were looked at, name -> column)."""
    columns = {name: Column(name) for name in column_names(tables)}
    count = 0
    for row in _spread(tables):
        count += 1
        for name, column in columns.items():
            column.add(row.get(name))
    return count, columns


def distinct_values(tables: Sequence[Table], name: str) -> list[str]:
    """All values of a column in all rows, as texts, sorted; rows without one are left out."""
    found: set[str] = set()
    for table in tables:
        if name in table.rows.column_names:
            found.update(str(value) for value in table.rows.unique(name) if value is not None and str(value).strip())
    return sorted(found)


def _spread(tables: Sequence[Table]) -> Iterator[Mapping[str, Any]]:
    total = sum(len(table.rows) for table in tables)
    step = max(1, -(-total // LOOKED_AT))
    for table in tables:
        yield from table.rows.select(range(0, len(table.rows), step)) if step > 1 else table.rows


def _kind(value: Any) -> Kind:
    if isinstance(value, list):
        if all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in value):
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
