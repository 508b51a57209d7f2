"""Question and SQL patterns: the grammar that all clients share, filled with each client's own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from fedtorch.data.synthetic.schemas import Schema, Table

T = TypeVar("T")


@dataclass(frozen=True)
class Pattern:
    """Paraphrases of one kind of question and the query that answers them.

    Slots: `{t}` a table, `{u}` its parent through a key; `{a}` and `{b}` two of the table's columns that can be
    asked for; `{x}`, `{v}` a text column and one of its values; `{n}`, `{m}` a number column and one of its
    values; `{y}`, `{w}` and `{k}`, `{l}` the same in the parent. Values of text columns stand in quotes in the
    question as they do in the query, so a model can learn to copy rather than to translate them.
    """

    name: str
    """as `Plan.patterns` lists it"""
    questions: tuple[str, ...]
    """paraphrases with slots; one of them is drawn for a question"""
    sql: str
    """the query that answers them, with the same slots"""

    def needs(self, slot: str) -> bool:
        return f"{{{slot}}}" in self.sql


# The spaces inside parentheses follow the real text-to-SQL sets; SQLite ignores them.
PATTERNS: tuple[Pattern, ...] = (
    Pattern("select", ("list the {a} of all {t}", "show the {a} of the {t}"), "select {a} from {t}"),
    Pattern("pair", ("list the {a} and {b} of all {t}", "show the {a} and {b} of the {t}"), "select {a}, {b} from {t}"),
    Pattern(
        "where",
        ("list the {a} of {t} with {x} '{v}'", "show the {a} of {t} whose {x} is '{v}'"),
        "select {a} from {t} where {x} = '{v}'",
    ),
    Pattern(
        "count",
        ("how many {t} have {x} '{v}'", "count the {t} whose {x} is '{v}'"),
        "select count( * ) from {t} where {x} = '{v}'",
    ),
    Pattern(
        "above",
        ("list the {a} of {t} with {n} above {m}", "show the {a} of {t} whose {n} is more than {m}"),
        "select {a} from {t} where {n} > {m}",
    ),
    Pattern(
        "below",
        ("list the {a} of {t} with {n} below {m}", "show the {a} of {t} whose {n} is less than {m}"),
        "select {a} from {t} where {n} < {m}",
    ),
    Pattern(
        "most",
        ("list the {a} of {t} with {n} at most {m}", "show the {a} of {t} whose {n} is at most {m}"),
        "select {a} from {t} where {n} <= {m}",
    ),
    Pattern(
        "highest",
        ("list the {a} of the {t} with the highest {n}", "show the {a} of the {t} whose {n} is highest"),
        "select {a} from {t} order by {n} desc limit 1",
    ),
    Pattern(
        "lowest",
        ("list the {a} of the {t} with the lowest {n}", "show the {a} of the {t} whose {n} is lowest"),
        "select {a} from {t} order by {n} limit 1",
    ),
    Pattern(
        "average",
        ("what is the average {n} of {t} with {x} '{v}'", "show the average {n} of {t} whose {x} is '{v}'"),
        "select avg( {n} ) from {t} where {x} = '{v}'",
    ),
    Pattern(
        "group",
        ("how many {t} are there for each {x}", "count the {t} for each {x}"),
        "select {x}, count( * ) from {t} group by {x}",
    ),
    Pattern(
        "both",
        (
            "list the {a} of {t} with {x} '{v}' and {n} above {m}",
            "show the {a} of {t} whose {x} is '{v}' and {n} above {m}",
        ),
        "select {a} from {t} where {x} = '{v}' and {n} > {m}",
    ),
    Pattern(
        "join",
        ("list the {a} of {t} from {u} with {y} '{w}'", "show the {a} of {t} from {u} whose {y} is '{w}'"),
        "select {a} from {t} natural join {u} where {y} = '{w}'",
    ),
    Pattern(
        "join above",
        ("list the {a} of {t} from {u} with {k} above {l}", "show the {a} of {t} from {u} whose {k} is more than {l}"),
        "select {a} from {t} natural join {u} where {k} > {l}",
    ),
    Pattern(
        "nested",
        ("list the {a} of {t} with {n} above the average", "show the {a} of {t} whose {n} is more than the average"),
        "select {a} from {t} where {n} > ( select avg( {n} ) from {t} )",
    ),
)


def fill(pattern: Pattern, schema: Schema, generator: torch.Generator) -> tuple[str, str] | None:
    """One random (question, query) of the pattern over the schema; None if the drawn table has no such column."""

    def pick(options: Sequence[T]) -> T:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    links = schema.links()
    parent: Table | None = None
    if pattern.needs("u"):
        if not links:
            return None
        table, parent = pick(links)
    else:
        table = pick(schema.tables)
    words: dict[str, str | int] = {"t": table.name}
    asked = table.named("label", "text", "number")
    for text, value, number, amount, source in (("x", "v", "n", "m", table), ("y", "w", "k", "l", parent)):
        for slot, filler, kind in ((text, value, "text"), (number, amount, "number")):
            if not pattern.needs(slot):
                continue
            if source is None or not source.named(kind):
                return None
            column = pick(source.named(kind))
            values: Sequence[str | int] = column.values
            words[slot], words[filler] = column.name, pick(values)
            asked = [other for other in asked if other != column]
    if parent is not None:
        words["u"] = parent.name
    for slot in ("a", "b"):
        if pattern.needs(slot):
            if not asked:
                return None
            column = pick(asked)
            words[slot] = column.name
            asked = [other for other in asked if other != column]
    return pick(pattern.questions).format(**words), pattern.sql.format(**words)
