"""The answers that WikiSQL's queries give: what is prepared, what SQL is asked, and when two queries agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedtorch.core.errors import DataError
from fedtorch.data.hydranet import Question
from fedtorch.data.prepare_wikisql import POOL, TABLES, prepare_wikisql
from fedtorch.data.sqlite import QueryError
from fedtorch.data.wikisql import read_split
from fedtorch.data.wikisql_tables import answer, query_text, write_tables
from fedtorch.models.networks.hydranet import Query
from fedtorch.tasks.wikisql import WikiSQL

KINDS = ("string", "real", "real")
ROWS = [["Ann O'Neil", 3, "1,200"], ["Bob", 5, 800], ["ann o'neil", 4, None], ["Eve", 2.5, "n/a"]]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    write_tables(tmp_path / TABLES, [{"types": ["real"], "rows": [[1]]}, {"types": KINDS, "rows": ROWS}])
    return tmp_path / TABLES


@pytest.mark.parametrize(
    ("agg", "sel", "conditions", "expected"),
    [
        (0, 1, [], [(3.0,), (5.0,), (4.0,), (2.5,)]),
        (0, 1, [(0, 0, "ANN O'Neil")], [(3.0,), (4.0,)]),  # without case; a quotation mark is text
        (3, 0, [(1, 1, "2.5")], [(3,)]),
        (1, 1, [(0, 0, "Bob"), (1, 2, "6 goals")], [(5.0,)]),  # the first number of a value
        (0, 0, [(2, 0, "1,200")], [("ann o'neil",)]),
        (4, 1, [(0, 0, "nobody")], [(None,)]),
        (0, 1, [(0, 0, "x' OR '1' = '1")], []),
        (0, 1, [(0, 3, "Bob")], None),  # the operator OP
        (0, 1, [(1, 0, "three")], None),
    ],
)
def test_answers_by_hand(tables: Path, agg: int, sel: int, conditions: Any, expected: Any) -> None:
    assert answer(tables, 1, KINDS, agg, sel, conditions) == expected


def test_the_sql_that_is_asked() -> None:
    text = query_text(4, KINDS, 5, 1, [(0, 0, "O'Neil"), (2, 1, "1,200")])
    assert text == "SELECT AVG(col1) FROM t4 WHERE col0 = 'o''neil' AND col2 > 1200.0"
    with pytest.raises(QueryError, match="no number is in a value"):
        query_text(4, KINDS, 0, 0, [(1, 0, "many")])


HEADER = {"header": ["Name", "Goals", "Fee"], "types": ["text", "real", "real"]}
SQL = {"sel": 1, "agg": 0, "conds": [[0, 0, "Bob"]]}


def raw(folder: Path, rows: Any) -> Path:
    """Two tables, the second without rows, and three questions of each."""
    folder.mkdir()
    ask = [
        {"table_id": i, "question": "how many goals has Bob or Eve", "sql": SQL} for i in ("a", "b") for _ in range(3)
    ]
    for split in ("train", "dev", "test"):
        found = [{"id": "a", **HEADER, "rows": rows}, {"id": "b", **HEADER}]
        for name, content in ((f"{split}.jsonl", ask), (f"{split}.tables.jsonl", found)):
            (folder / name).write_text("\n".join(map(json.dumps, content)))
    return folder


def test_a_query_is_right_where_its_answer_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = prepare_wikisql(raw(tmp_path / "raw", ROWS), out, vocab_size=300)
    assert manifest["record"]["tables"] == 1
    task = WikiSQL(data=str(out), server_labelled=2, num_clients=2, client_size=(1, 2), parts=1)
    assert task.metrics()[-1] == "execution"
    questions = task.load("part0", "test")
    assert [getattr(q, "table", None) for q in questions] == [(0, KINDS)] * 3 + [None] * 3
    question = questions[0]
    assert isinstance(question, Question) and question.gold is not None
    (span,) = (span for _, span in question.gold.conditions.values())
    gold = Query(0, 1, (0,), {0: (0, span), 1: (0, span), 2: (0, span)})
    # the highest goals of Bob are his goals; asked for a number, his name has none
    others = [gold._replace(agg=1), gold._replace(where=()), gold._replace(where=(1,))]
    found = [task.score([q], [query])["execution"] for q, query in zip(questions, [gold, *others[:2]])]
    assert found == [(1.0, 1), (1.0, 1), (0.0, 1)]
    assert task.score(questions[:1], others[2:])["execution"] == (0.0, 1)
    scores = task.score(questions, [gold] * 6)
    assert scores["execution"] == (3.0, 3) and scores["logical_form"] == (6.0, 6)


def test_without_rows_there_is_no_such_measure_and_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    prepare_wikisql(raw(tmp_path / "raw", []), tmp_path / "out", vocab_size=300)
    assert not (tmp_path / "out" / POOL / TABLES).exists()
    assert "execution" not in WikiSQL(data=str(tmp_path / "out"), server_labelled=2, num_clients=2).metrics()
    with pytest.raises(DataError, match=r"dev.tables.jsonl:1: `rows` is no list of rows of 3 texts or numbers"):
        read_split(raw(tmp_path / "other", [["Bob", 1]]), "dev")
