"""Facts of prepared data by hand: patterns, tables and SELECTs of queries; lengths and the share of relevant ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.data.client_facts import FACTS, of_answers, of_queries, pattern, table
from fedtorch.data.qa_folder import QARow

CITY = 'SELECT CITYalias0.NAME FROM CITY AS CITYalias0 WHERE CITYalias0.STATE = "state0" ;'
STATE = "SELECT STATEalias0.AREA FROM STATE AS STATEalias0 WHERE STATEalias0.NAME = 'select it' ;"
NESTED = (
    "SELECT COUNT( * ) FROM CITY AS A , STATE AS B WHERE A.POPULATION > ( SELECT MAX( C.POPULATION ) FROM LAKE AS C ) ;"
)


def test_a_pattern_is_a_query_without_its_names_and_values() -> None:
    assert pattern(CITY) == "select C from T as T where C = V ;"
    assert pattern(CITY) == pattern(STATE) == pattern(CITY.replace('"state0"', "12.5").lower())
    assert pattern("SELECT A.B FROM A WHERE A.C <= 1") != pattern("SELECT A.B FROM A WHERE A.C < 1")


def test_figures_of_queries_are_means_over_different_queries() -> None:
    facts = of_queries({CITY: 3, STATE: 1, NESTED: 5})
    assert facts == {
        "queries": 3,
        "query patterns": 2,
        "questions per query": 3.0,
        "tables per query": pytest.approx(5 / 3, abs=1e-4),
        "SELECTs per query": pytest.approx(4 / 3, abs=1e-4),  # what stands in quotation marks is none
    }
    assert of_queries({})["questions per query"] == 0


def test_figures_of_answers_are_over_all_splits() -> None:
    one = QARow("who is it", ["a b", "c"], [1, 0], ["0", "1"])
    two = QARow("why", ["a b", "d e f g", "c"], [0, 1, 0], ["0", "2", "1"])
    facts = of_answers({"train": [one], "dev": [], "test": [two]})
    assert facts == {
        "questions": 2,
        "answers": 3,
        "words per question": 2.0,
        "words per answer": pytest.approx(7 / 3, abs=1e-4),
        "relevant %": 40.0,
    }


def test_the_facts_of_a_manifest_are_a_table() -> None:
    manifest = {
        "record": {FACTS: {"a": {"queries": 3, "SELECTs per query": 1.5}, "b": {"queries": 1, "SELECTs per query": 2}}}
    }
    found = table(manifest, most=1)
    assert found is not None and found.row_count == 1
    assert [list(column.cells) for column in found.columns] == [["a"], ["3"], ["1.50"]]
    assert table({"record": {}}, most=1) is None


@pytest.mark.data
def test_figures_of_the_published_sets(shared_data: Path) -> None:
    from fedtorch.data.text2sql import read_set

    facts = of_queries(read_set(shared_data / "text2sql" / "academic.json").queries)
    assert (facts["queries"], facts["query patterns"], facts["questions per query"]) == (185, 92, 1.0595)
