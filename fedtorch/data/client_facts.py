"""Facts that papers tell of their data sets beside sizes: kept per client in a manifest's record, and printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

FACTS = "facts"
"""Where a manifest's record has them: client -> column -> number."""

_MAX = ", max"
"""Ends the name of a column that has the largest value of the column before it."""
_TOKEN = re.compile(r""""[^"]*"|'[^']*'|`[^`]*`|\[[^\]]*\]|[^\W\d][\w.]*|\d+(?:\.\d+)?|<>|<=|>=|!=|[^\s\w]""")
_KEYWORDS = frozenset(
    "all and any as asc avg between by case count cross desc distinct else end except exists from full group having in "
    "inner intersect is join left like limit max min natural not null offset on or order outer right select sum then "
    "union when where".split()
)
_AFTER_FROM = frozenset(("where", "group", "having", "order", "limit", "union", "intersect", "except", ";"))
"""Words that end the list of tables behind a FROM."""


def of_queries(queries: Mapping[str, int]) -> dict[str, float]:
    """The columns of Lorar's table 1. queries: each different query, its variables not filled in -> its questions.

    Means and largest values are over queries. A table counts as often as a FROM or JOIN names it; unique ones once.
    """
    named = [tables_in(query) for query in queries]
    return {
        "queries": len(queries),
        "query patterns": len({pattern(query) for query in queries}),
        **_mean_and_max("questions per query", queries.values()),
        **_mean_and_max("tables per query", map(len, named)),
        **_mean_and_max("unique tables per query", (len(set(tables)) for tables in named)),
        **_mean_and_max("SELECTs per query", (_words(query).count("select") for query in queries)),
    }


def tables_in(query: str) -> list[str]:
    """Names of the tables that a query reads, in lower case, in the order of its FROMs and JOINs, with repetitions.

    Neither an alias nor what a WITH defines is a table, and a query within brackets is none itself.
    """
    words = _words(query)
    own = {words[i - 2] for i in range(2, len(words)) if words[i - 1] == "as" and words[i] == "("}
    own = own if words[:1] == ["with"] else set()
    tables = []
    levels = [_Level()]
    for word in words:
        level = levels[-1]
        if word == "(":
            levels.append(_Level(listed=level.due, due=level.due))  # brackets around a join, or a query in them
            level.due = False
        elif word == ")":
            levels = levels[:-1] or [_Level()]
        elif word == "select":
            levels[-1] = _Level(selected=True)
        elif word == "from" and level.selected:  # not that of EXTRACT(YEAR FROM day)
            level.listed = level.due = True
        elif word == "join":
            level.due = True
        elif word == ",":
            level.due = level.listed
        elif word in _AFTER_FROM:
            level.listed = level.due = False
        elif level.due:
            level.due = False
            name = word.rpartition(".")[2].strip("\"'`[]")
            tables += [name] if name not in own else []
    return tables


@dataclass
class _Level:
    """Where a reader of a query is, within each bracket that is open."""

    selected: bool = False
    """has a SELECT begun here?"""
    listed: bool = False
    """in a list of tables?"""
    due: bool = False
    """is a table next?"""


def pattern(query: str) -> str:
    """A query without its names and values: a table or alias is T, a column C, a string or number V."""
    found = []
    for token in _TOKEN.findall(query):
        word = token.lower()
        if token[0] in "\"'" or token[0].isdigit():
            found.append("V")
        elif word in _KEYWORDS or not (token[0].isalpha() or token[0] in "_`["):
            found.append(word)
        else:
            found.append("C" if "." in word else "T")
    return " ".join(found)


def of_answers(questions: Sequence[str], answers: Sequence[str], labels: Mapping[int, int]) -> dict[str, float]:
    """The columns of FedMatch's table 1, of a client's data as published: white-space words, and relevant candidates.

    Args:
        questions: all of them, those too that cannot be trained on.
        answers: the different ones.
        labels: 1 relevant, 0 not -> how many candidates.
    """
    candidates = sum(labels.values())
    return {
        "questions": len(questions),
        "answers": len(answers),
        "words per question": _mean(len(question.split()) for question in questions),
        "words per answer": _mean(len(answer.split()) for answer in answers),
        "relevant %": round(100 * labels.get(1, 0) / candidates, 4) if candidates else 0.0,
    }


def table(manifest: Mapping[str, Any], *, most: int) -> Table | None:
    """The facts of the first `most` clients as a table; None where the record has none.

    A largest value stands in brackets behind its mean.
    """
    from rich.table import Column, Table

    facts = manifest["record"].get(FACTS)
    if not facts:
        return None
    keys = next(iter(facts.values()))
    columns = [name for name in keys if not name.endswith(_MAX)]
    headers = (f"{name} (max)" if name + _MAX in keys else name for name in columns)
    found = Table(Column("client", no_wrap=True), *headers)
    for column in found.columns[1:]:
        column.justify = "right"
    for client, values in list(facts.items())[:most]:
        found.add_row(client, *(_cell(values, name) for name in columns))
    return found


def _cell(values: Mapping[str, float], name: str) -> str:
    text = f"{value:.2f}" if isinstance(value := values[name], float) else str(value)
    return f"{text} ({values[name + _MAX]})" if name + _MAX in values else text


def _words(query: str) -> list[str]:
    """The query's words and signs in lower case; strings keep their quotation marks."""
    return [token.lower() for token in _TOKEN.findall(query)]


def _mean_and_max(name: str, values: Iterable[int]) -> dict[str, float]:
    numbers = list(values)
    return {name: _mean(numbers), name + _MAX: max(numbers, default=0)}


def _mean(values: Iterable[int]) -> float:
    numbers = list(values)
    return round(fmean(numbers), 4) if numbers else 0.0
