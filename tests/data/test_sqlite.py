from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from fedtorch.core.errors import DataError
from fedtorch.data.sqlite import QueryError, execute

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a b#?.sqlite"  # characters that mean something in a URI
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE city (name TEXT, population INTEGER)")
        connection.executemany("INSERT INTO city VALUES (?, ?)", [("austin", 3), ("boston", 5), ("chicago", 7)])
        connection.commit()
    return path


def test_a_select_is_answered_and_cut_at_the_row_limit(database: Path) -> None:
    answer = execute(database, "SELECT name FROM city WHERE population > 3 ORDER BY name ;")
    assert answer.rows == [("boston",), ("chicago",)] and not answer.truncated
    answer = execute(database, "SELECT max(population) FROM city GROUP BY name", row_limit=2)
    assert len(answer.rows) == 2 and answer.truncated
    assert execute(database, "WITH t AS (SELECT 1 AS x) SELECT x FROM t").rows == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH DATABASE 'NEVER' AS x",
        "PRAGMA table_info(city)",
        "SELECT * FROM pragma_table_info('city')",
        "PRAGMA query_only = 0",
        "DROP TABLE city",
        "DELETE FROM city",
        "UPDATE city SET name = 'x'",
        "INSERT INTO city VALUES ('x', 1)",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x (y)",
        "VACUUM INTO 'NEVER'",
        "BEGIN",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE city",
        "SELECT",
        "SELECT nothing FROM city",
        "",
        "-- only a comment",
        "SELECT '\0'",
        "SELECT '\ud800'",
    ],
)
def test_everything_but_one_valid_select_is_refused_and_changes_nothing(database: Path, sql: str) -> None:
    before = database.read_bytes()
    never = database.with_name("never.sqlite")
    with pytest.raises(QueryError):
        execute(database, sql.replace("NEVER", str(never)))
    assert database.read_bytes() == before
    assert not never.exists()


def test_a_query_without_end_is_stopped(database: Path) -> None:
    start = time.monotonic()
    with pytest.raises(QueryError, match="longer than 0.1 s"):
        execute(database, ENDLESS, time_limit_s=0.1)
    assert time.monotonic() - start < 5


def test_a_giant_value_is_refused(database: Path) -> None:
    with pytest.raises(QueryError, match="too big"):
        execute(database, "SELECT hex(zeroblob(500000000))")


def test_a_file_that_is_missing_or_no_database_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is missing"):
        execute(tmp_path / "none.sqlite", "SELECT 1")
    assert not (tmp_path / "none.sqlite").exists()
    (tmp_path / "text.sqlite").write_text("hello " * 100)
    with pytest.raises(DataError, match="not a SQLite database"):
        execute(tmp_path / "text.sqlite", "SELECT 1")
