"""Running one SELECT of unknown origin against a SQLite file: read-only, one statement, limited in time and rows."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError

_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_CHECK_EVERY = 1000  # virtual machine steps between two looks at the clock: well below a millisecond
_LONGEST_VALUE = 10_000_000  # bytes of one cell; stops hex(zeroblob(1000000000)) from filling the memory


class QueryError(ValueError):
    """The query is refused, wrong, too slow or too large; the database is unharmed in each case."""


@dataclass(frozen=True)
class Answer:
    """Rows that a query gave."""

    rows: list[tuple[Any, ...]]
    """at most `row_limit`"""
    truncated: bool
    """there were more"""


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; bytes that are not UTF-8 come back replaced.

    Raises:
        DataError: no such file, or not a SQLite database.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} is missing; expected a SQLite database")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        connection.close()
        raise DataError(f"{path} is not a SQLite database that can be read: {error}") from None
    return connection


def execute(path: Path, sql: str, *, time_limit_s: float = 10.0, row_limit: int = 10_000) -> Answer:
    """The answer to one SELECT (or WITH ... SELECT), for checking that generated SQL can be executed.

    Every other action (ATTACH, PRAGMA, writes of any kind, loading extensions) is refused when the statement is
    compiled, before anything runs; so is a second statement.

    Raises:
        QueryError: refused, not valid for this database, or longer than `time_limit_s`.
        DataError: the file is missing or no database.
    """
    deadline = time.monotonic() + time_limit_s
    with closing(open_read_only(path)) as connection:
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_EVERY)
        try:
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise QueryError("not a SELECT statement; only those are executed")
            rows = cursor.fetchmany(row_limit + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if isinstance(error, QueryError):
                raise
            if time.monotonic() > deadline:
                raise QueryError(f"took longer than {time_limit_s} s") from None
            raise QueryError(f"{type(error).__name__}: {error}") from None
    return Answer(rows[:row_limit], len(rows) > row_limit)


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
