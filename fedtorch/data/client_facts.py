"""Facts that papers tell of their data sets beside sizes: kept per client in a manifest's record, and printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from fedtorch.data.qa_folder import QARow

FACTS = "facts"
"""Where a manifest's record has them: client -> column -> number."""

_TOKEN = re.compile(r""""[^"]*"|'[^']*'|[^\W\d][\w.]*|\d+(?:\.\d+)?|<>|<=|>=|!=|[^\s\w]""")
_KEYWORDS = frozenset(
    "all and any as asc avg between by case count cross desc distinct else end except exists from full group having in "
    "inner intersect is join left like limit max min natural not null offset on or order outer right select sum then "
    "union when where".split()
)


def of_queries(queries: Mapping[str, int]) -> dict[str, float]:
    """The columns of Lorar's table 1. queries: each different query, its variables not filled in -> its questions.

    Means are over queries. A table counts as often as it stands before AS, as text2sql-data names every table.
    """
    selects = [len(re.findall(r"\bSELECT\b", _bare(query), re.IGNORECASE)) for query in queries]
    tables = [len(re.findall(r"\b\w+\s+AS\s+\w+", _bare(query), re.IGNORECASE)) for query in queries]
    return {
        "queries": len(queries),
        "query patterns": len({pattern(query) for query in queries}),
        "questions per query": _mean(queries.values()),
        "tables per query": _mean(tables),
        "SELECTs per query": _mean(selects),
    }


def pattern(query: str) -> str:
    """A query without its names and values: a table or alias is T, a column C, a string or number V."""
    found = []
    for token in _TOKEN.findall(query):
        word = token.lower()
        if token[0] in "\"'" or token[0].isdigit():
            found.append("V")
        elif word in _KEYWORDS or not (token[0].isalpha() or token[0] == "_"):
            found.append(word)
        else:
            found.append("C" if "." in word else "T")
    return " ".join(found)


def of_answers(splits: Mapping[str, Sequence[QARow]]) -> dict[str, float]:
    """The columns of FedMatch's table 1 over all splits: white-space words, and the share of candidates in percent."""
    rows = [row for part in splits.values() for row in part]
    answers = list(dict.fromkeys(answer for row in rows for answer in row.answers))
    labels = [label for row in rows for label in row.labels]
    return {
        "questions": len(rows),
        "answers": len(answers),
        "words per question": _mean(len(row.question.split()) for row in rows),
        "words per answer": _mean(len(answer.split()) for answer in answers),
        "relevant %": 100 * _mean(labels),
    }


def table(manifest: Mapping[str, Any], *, most: int) -> Table | None:
    """The facts of the first `most` clients as a table; None where the record has none."""
    from rich.table import Table

    facts = manifest["record"].get(FACTS)
    if not facts:
        return None
    columns = list(next(iter(facts.values())))
    found = Table("client", *columns)
    for column in found.columns[1:]:
        column.justify = "right"
    for client, values in list(facts.items())[:most]:
        found.add_row(client, *(f"{v:.2f}" if isinstance(v := values[name], float) else str(v) for name in columns))
    return found


def _bare(query: str) -> str:
    """Without what stands in quotation marks."""
    return re.sub(r""""[^"]*"|'[^']*'""", '""', query)


def _mean(values: Iterable[int]) -> float:
    numbers = list(values)
    return round(fmean(numbers), 4) if numbers else 0.0
