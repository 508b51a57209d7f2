from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.core.errors import DataError
from fedtorch.data import text2sql as t
from fedtorch.data.cell_values import find_database, match_cells, read_cells


def entry(sql: str, *sentences: tuple[str, str, dict[str, str]], **examples: str) -> dict[str, Any]:
    return {
        "sql": [sql, "SELECT 'another, equivalent query' ;"],
        "variables": [{"name": n, "example": e, "location": "both", "type": "x"} for n, e in examples.items()],
        "sentences": [{"text": text, "question-split": split, "variables": own} for text, split, own in sentences],
    }


def read(tmp_path: Path, *entries: Any) -> t.QuestionSet:
    path = tmp_path / "set.json"
    path.write_text(json.dumps(entries))
    return t.read_set(path)


def test_the_longest_variable_name_is_replaced_first(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        entry('SELECT "city_name0" , "name0" ;', ("name0 in city_name0", "0", {"name0": "joe", "city_name0": "rome"})),
    )
    assert found.splits["train"] == [{"question": "joe in rome", "sql": 'SELECT "rome" , "joe" ;'}]


def test_empty_and_missing_values_take_the_example_and_undeclared_ones_the_sentence(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        entry(
            "SELECT dep0 , num0 , only0 , own0 ;",
            ("num0 own0", "train", {"dep0": "", "num0": "281", "own0": "mine"}),
            dep0="EECS",
            num0="550",
            only0="2016",
        ),
    )
    assert found.splits["train"] == [{"question": "281 mine", "sql": "SELECT EECS , 281 , 2016 , mine ;"}]
    assert found.unfilled == 0


def test_a_variable_with_a_value_nowhere_is_counted_if_the_row_uses_it(tmp_path: Path) -> None:
    found = read(tmp_path, entry("SELECT a0 ;", ("q", "dev", {"a0": "", "b0": ""})))
    assert found.unfilled == 1 and found.splits["dev"] == [{"question": "q", "sql": "SELECT a0 ;"}]
    assert read(tmp_path, entry("SELECT 1 ;", ("q", "dev", {"a0": ""}))).unfilled == 0


def test_folds_0_to_5_train_6_7_dev_8_9_test_and_exclude_is_dropped(tmp_path: Path) -> None:
    found = read(tmp_path, entry("S", *((str(fold), str(fold), {}) for fold in range(10)), ("x", "exclude", {})))
    questions = {split: "".join(row["question"] for row in rows) for split, rows in found.splits.items()}
    assert questions == {"train": "012345", "dev": "67", "test": "89"} and found.excluded == 1


@pytest.mark.parametrize(
    "bad",
    [{}, [], 3, {"sql": [], "variables": [], "sentences": []}, {"sql": ["s"], "variables": [], "sentences": [{}]}],
)
def test_a_malformed_entry_is_named(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(DataError, match="set.json, entry 1"):
        read(tmp_path, entry("S", ("q", "train", {})), bad)


def test_missing_files_unknown_splits_and_other_json_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--raw must be"):
        t.read_set(tmp_path / "none.json")
    with pytest.raises(DataError, match="unknown `question-split` 'validation'"):
        read(tmp_path, entry("S", ("q", "validation", {})))
    (tmp_path / "set.json").write_text("{}")
    with pytest.raises(DataError, match="expected a list"):
        t.read_set(tmp_path / "set.json")
    (tmp_path / "set.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        t.read_set(tmp_path / "set.json")


@given(st.dictionaries(st.sampled_from(["a0", "aa0", "baa0"]), st.sampled_from(["x", "a0", "aa0 baa0"]), min_size=1))
def test_filling_never_replaces_inside_a_value(values: dict[str, str]) -> None:
    for name, value in values.items():
        assert t.fill(f"<{name}>", values) == f"<{value}>"


SCHEMA = """Table Name, Field Name, Is Primary Key, Type
CITY, NAME,       y, varchar(255)
CITY, RATING,     n, "decimal(1,1)"
-, -, -, -, -
State, State_Name, y, text, NULL,
"""


def test_the_schema_file_is_read_whatever_its_header_padding_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(SCHEMA)
    assert t.read_schema(path) == {"CITY": ["NAME", "RATING"], "State": ["State_Name"]}
    assert t.serialise(t.read_schema(path), {}) == "| city : name , rating | state : state_name"


@pytest.mark.parametrize("text", ["", "a, b\n", "a, b\nonly\n", "a, b\nx, \n", "a\n\xff\n"])
def test_a_schema_file_without_usable_rows_is_a_data_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"s\.csv"):
        t.read_schema(path)


def test_source_and_target_are_as_the_authors_write_them() -> None:
    assert t.source_text(" how many ? ", "| a : b") == "how many ? ; structured knowledge: | a : b"
    sql = 'SELECT  COUNT( * ) , A.X FROM A\n WHERE A.Y = "New York" AND A.Z <= 3 ;'
    assert t.target_text(sql) == 'select count( * ), a.x from a where a.y = "New York" and a.z <= 3 ;'


def test_of_a_quoted_value_only_the_words_beside_the_quotation_marks_keep_their_case() -> None:
    assert t.target_text('X = "New York City" OR X = \'Rome\' OR X = " Rome "') == (
        'x = "New york City" or x = \'Rome\' or x = " rome "'
    )


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "geo-db.added.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE City ("City Name" TEXT, kind TEXT, size INTEGER, code TEXT)')
        rows = [("Austin", "harbour town", 5, "TX"), ("New Austin", "harbor", 7, "how"), ("id", "the", 9, "7")]
        connection.executemany("INSERT INTO City VALUES (?, ?, ?, ?)", [*rows, (None, b"\xff", None, "")])
        connection.commit()
    return path


def matches(database: Path, question: str) -> dict[str, list[str]]:
    return {column: found for (_, column), found in match_cells(question, read_cells(database)).items()}


def test_cells_are_matched_by_whole_words_ignoring_case(database: Path) -> None:
    assert matches(database, "how big is new austin ?") == {"city name": ["New Austin", "Austin"]}
    assert matches(database, "the Austins") == {}  # `name` columns: exact only
    assert matches(database, "is there a harbor in Austin's area of 5 or 7 , id ?") == {
        "kind": ["harbor"],
        "city name": ["Austin"],
    }


def test_a_spelling_close_enough_matches_except_for_capitals(database: Path) -> None:
    assert matches(database, "any harbor town ?") == {"kind": ["harbor", "harbour town"]}
    assert matches(database, "any harbor ?") == {"kind": ["harbor"]}  # harbour town is too long
    assert matches(database, "in tx and TXs") == {"code": ["TX"]}


def test_at_most_two_cells_a_column(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE a (b TEXT)")
        connection.executemany("INSERT INTO a VALUES (?)", [("red",), ("blue",), ("green",)])
        connection.commit()
    found = match_cells("red blue green", read_cells(path))
    assert found == {("a", "b"): ["green", "blue"]}
    assert t.serialise({"A": ["B", "C"]}, found) == "| a : b ( green , blue ) , c"


def test_the_database_of_a_set_is_found_by_its_name(database: Path) -> None:
    assert find_database(database.parent, "geo") == database
    assert find_database(database.parent, "ge") is None
    (database.parent / "geo.db").touch()
    with pytest.raises(DataError, match="2 databases for geo"):
        find_database(database.parent, "geo")
    with pytest.raises(DataError, match="not a folder"):
        find_database(database.parent / "none", "geo")
