"""WikiSQL's tables with their rows, as one SQLite file, and the answers that queries give there."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fedtorch.data.sqlite import QueryError, execute
from fedtorch.data.wikisql import AGGREGATIONS, OPERATORS

NAME = "tables.sqlite"
"""In the pool's folder; table n is `t<n>`, its columns `col0` and so on."""

_NUMBER = re.compile(r"[-+]?\d*\.\d+|\d+")
_TIME_LIMIT_S = 2.0


def write_tables(path: Path, tables: Sequence[Mapping[str, Any]]) -> None:
    """Write `header`, `types` and `rows` of each; texts in lower case, as they are compared without case."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for number, table in enumerate(tables):
            kinds = table["types"]
            columns = ", ".join(f"col{i} {'REAL' if kind == 'real' else 'TEXT'}" for i, kind in enumerate(kinds))
            connection.execute(f"CREATE TABLE t{number} ({columns})")
            places = ", ".join("?" * len(kinds))
            cells = [[_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)] for row in table["rows"]]
            connection.executemany(f"INSERT INTO t{number} VALUES ({places})", cells)


def query_text(table: int, kinds: Sequence[str], agg: int, sel: int, conditions: Iterable[tuple[int, int, str]]) -> str:
    """SQL of a query in WikiSQL's form; conditions: (column, operator, value).

    Raises:
        QueryError: an operator that SQL lacks, or no number in the value for a column of numbers.
    """
    where = []
    for column, operator, value in conditions:
        if OPERATORS[operator] == "OP":
            raise QueryError("the operator OP stands for none")
        wanted = repr(_number(value)) if kinds[column] == "real" else "'" + value.lower().replace("'", "''") + "'"
        where.append(f"col{column} {OPERATORS[operator]} {wanted}")
    asked = f"{AGGREGATIONS[agg]}(col{sel})" if agg else f"col{sel}"
    return f"SELECT {asked} FROM t{table}" + (f" WHERE {' AND '.join(where)}" if where else "")


def answer(
    path: Path, table: int, kinds: Sequence[str], agg: int, sel: int, conditions: Iterable[tuple[int, int, str]]
) -> list[tuple[Any, ...]] | None:
    """The rows that a query gives, in the table's order; None if it takes longer than 2 s or cannot be run."""
    try:
        return execute(path, query_text(table, kinds, agg, sel, conditions), time_limit_s=_TIME_LIMIT_S).rows
    except QueryError:
        return None


def _number(value: str) -> float:
    """As WikiSQL's evaluator: the value as an English number, else the first number in it."""
    try:
        return float(value.replace(",", ""))
    except ValueError:
        found = _NUMBER.findall(value)
    if not found:
        raise QueryError("no number is in a value that is compared with numbers")
    return float(found[0])


def _cell(cell: Any, kind: str) -> Any:
    if kind == "real" and isinstance(cell, str):
        try:
            return float(cell.replace(",", ""))
        except ValueError:
            return cell.lower()
    return cell.lower() if isinstance(cell, str) else cell
