"""Facts of prepared data by hand: patterns, tables and SELECTs of queries; lengths and the share of relevant ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.data.client_facts import FACTS, of_answers, of_queries, pattern, table, tables_in
from fedtorch.data.text2sql import CLIENTS, read_set

CITY = 'SELECT CITYalias0.NAME FROM CITY AS CITYalias0 WHERE CITYalias0.STATE = "state0" ;'
STATE = "SELECT STATEalias0.AREA FROM STATE AS STATEalias0 WHERE STATEalias0.NAME = 'select it' ;"
NESTED = (
    "SELECT COUNT( * ) FROM CITY AS A , STATE AS B WHERE A.POPULATION > ( SELECT MAX( C.POPULATION ) FROM LAKE AS C ) ;"
)


def test_a_pattern_is_a_query_without_its_names_and_values() -> None:
    assert pattern(CITY) == "select C from T as T where C = V ;"
    assert pattern(CITY) == pattern(STATE) == pattern(CITY.replace('"state0"', "12.5").lower())
    assert pattern("SELECT `a` FROM [b c]") == "select T from T"
    assert pattern("SELECT A.B FROM A WHERE A.C <= 1") != pattern("SELECT A.B FROM A WHERE A.C < 1")


def test_figures_of_queries_are_means_and_largest_values_over_different_queries() -> None:
    facts = of_queries({CITY: 3, STATE: 1, NESTED: 5, "SELECT A.X FROM CITY A , CITY B ;": 3})
    assert facts == {
        "queries": 4,
        "query patterns": 3,
        "questions per query": 3.0,
        "questions per query, max": 5,
        "tables per query": 1.75,  # 1, 1, 3, 2
        "tables per query, max": 3,
        "unique tables per query": 1.5,  # 1, 1, 3, 1
        "unique tables per query, max": 3,
        "SELECTs per query": 1.25,  # what stands in quotation marks is none
        "SELECTs per query, max": 2,
    }
    assert of_queries({})["questions per query"] == of_queries({})["questions per query, max"] == 0


TABLES = {
    "select name from country": ["country"],
    "SELECT COUNT(*) FROM city AS T1 JOIN country T2 ON T1.code = T2.code": ["city", "country"],
    "SELECT a.x, b.y FROM Lake a, main.River AS b, lake WHERE a.x = 'from sea'": ["lake", "river", "lake"],
    "SELECT a.x AS name FROM a LEFT OUTER JOIN b USING ( x , y ) , c ORDER BY a.x , a.y": ["a", "b", "c"],
    "SELECT x FROM ( SELECT x FROM a GROUP BY x , y ) AS T , b": ["a", "b"],
    "SELECT x FROM ( a JOIN b ON a.x = b.x )": ["a", "b"],
    "SELECT x FROM a WHERE y IN ( SELECT y FROM b ) UNION SELECT x FROM a": ["a", "b", "a"],
    "SELECT EXTRACT( YEAR FROM day ) , z FROM a": ["a"],
    "WITH w AS ( SELECT x FROM a ) SELECT x FROM w , b": ["a", "b"],
    'SELECT `x` FROM `my table` JOIN [other] JOIN "third"': ["my table", "other", "third"],
    "SELECT 1": [],
}


@pytest.mark.parametrize("query", TABLES)
def test_a_table_is_what_a_from_or_join_names(query: str) -> None:
    assert tables_in(query) == TABLES[query]


def test_figures_of_answers_are_of_all_questions_and_candidates() -> None:
    facts = of_answers(["who is it", "why"], ["a b", "c", "d e f g"], {1: 2, 0: 3})
    assert facts == {
        "questions": 2,
        "answers": 3,
        "words per question": 2.0,
        "words per answer": pytest.approx(7 / 3, abs=1e-4),
        "relevant %": 40.0,
    }


def test_the_facts_of_a_manifest_are_a_table() -> None:
    one = {"queries": 3, "SELECTs per query": 1.5, "SELECTs per query, max": 4}
    manifest = {"record": {FACTS: {"a": one, "b": {**one, "queries": 1}}}}
    found = table(manifest, most=1)
    assert found is not None and found.row_count == 1
    assert [str(column.header) for column in found.columns] == ["client", "queries", "SELECTs per query (max)"]
    assert [list(column.cells) for column in found.columns] == [["a"], ["3"], ["1.50 (4)"]]
    assert table({"record": {}}, most=1) is None


PAPER_SETS = {
    "advising": (203, 180, (16.90, 40), (3.41, 9), (3.12, 6), (1.22, 6)),
    "atis": (944, 797, (5.59, 833), (8.39, 34), (4.67, 12), (1.79, 32)),
    "geoquery": (245, 117, (3.58, 43), (2.23, 8), (1.46, 3), (2.19, 8)),
    "restaurants": (23, 16, (16.43, 69), (2.43, 5), (2.26, 3), (1.17, 2)),
    "scholar": (186, 150, (4.39, 45), (3.38, 6), (3.25, 6), (1.02, 2)),
    "academic": (185, 92, (1.06, 2), (3.48, 8), (3.23, 6), (1.04, 3)),
    "imdb": (89, 57, (1.47, 5), (2.91, 5), (2.84, 5), (1.01, 2)),
    "yelp": (108, 83, (1.19, 6), (2.41, 5), (2.24, 4), (1.00, 1)),
}
"""client -> the row of the table in docs/lorar.md"""


@pytest.mark.data
@pytest.mark.parametrize("client", PAPER_SETS)
def test_figures_of_the_published_sets_are_those_of_the_page(shared_data: Path, client: str) -> None:
    facts = of_queries(read_set(shared_data / "text2sql" / f"{CLIENTS[client]}.json").queries)
    counts, pairs = PAPER_SETS[client][:2], PAPER_SETS[client][2:]
    assert (facts["queries"], facts["query patterns"]) == counts
    found = [round(value, 2) for name, value in facts.items() if " per " in name]
    assert found == [value for pair in pairs for value in pair]
    page = (Path(__file__).parents[2] / "docs" / "lorar.md").read_text().lower()
    row = [client, *map(str, counts), *(f"{mean:.2f} ({most})" for mean, most in pairs)]
    assert f"| {' | '.join(row)} |" in page


@pytest.mark.long
@pytest.mark.data
def test_a_parser_of_sql_finds_the_same_tables_in_every_published_query(shared_data: Path) -> None:
    """Spider's queries, which mostly have no AS, are among them."""
    sqlglot = pytest.importorskip("sqlglot")
    queries = [query for stem in CLIENTS.values() for query in read_set(shared_data / f"text2sql/{stem}.json").queries]
    spider = {
        query
        for path in (shared_data / "crossfit" / "spider").glob("*.tsv")
        for line in path.read_text().splitlines()
        for query in line.split("\t")[1:]
    }
    assert len(queries) == 1983 and len(spider) == 332
    for query in [*queries, *sorted(spider)]:
        parsed = sqlglot.parse_one(query).find_all(sqlglot.exp.Table)
        assert sorted(tables_in(query)) == sorted(table.name.lower() for table in parsed), query
