"""`fedtorch.partition`: rows at hand and a config's own data, by the rules of `task.data.clients`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtorch
from fedtorch.cli.__main__ import main
from fedtorch.data.own.partition import ClientRule, Dirichlet, deal, row_ids
from fedtorch.data.own.partition_files import read_partition, write_partition

ROWS = [{"text": f"note {i}", "label": "xyz"[i % 3], "site": "nw"[i % 2]} for i in range(60)]


def test_rows_are_dealt_as_deal_deals_them() -> None:
    rule = {"dirichlet": {"alpha": 0.5, "number": 4, "min_size": 2}}
    made = ClientRule(dirichlet=Dirichlet(alpha=0.5, number=4, min_size=2))
    labels = [row["label"] for row in ROWS]
    expected = deal(made, ids=row_ids(ROWS, None), labels=labels, owners=None, seed=42)
    found = fedtorch.partition(ROWS, rule)
    assert found == {client: rows.tolist() for client, rows in expected.items()} == fedtorch.partition(ROWS, made)
    assert found != fedtorch.partition(ROWS, rule, seed=1)


def test_the_order_of_rows_does_not_count_but_that_of_bare_classes_does() -> None:
    rule = {"shards": {"number": 3}}
    there, back = fedtorch.partition(ROWS, rule), fedtorch.partition(ROWS[::-1], rule)
    assert there == {client: [59 - i for i in rows] for client, rows in back.items()}
    labels = [row["label"] for row in ROWS]
    parts = fedtorch.partition(labels, rule)
    assert sorted(sum(parts.values(), [])) == list(range(60))
    assert parts != {client: [59 - i for i in rows] for client, rows in fedtorch.partition(labels[::-1], rule).items()}


@pytest.mark.parametrize("labels", [np.arange(60) % 2, list(np.array(["x", "y"])[np.arange(60) % 2]), (0, 1) * 30])
def test_classes_come_as_any_sequence(labels: Any) -> None:
    parts = fedtorch.partition(labels, {"pathological": {"classes": 1, "number": 2}}, seed=3)
    assert sorted(map(sorted, parts.values())) == [list(range(0, 60, 2)), list(range(1, 60, 2))]


def test_a_column_names_the_clients_and_another_the_rows() -> None:
    assert fedtorch.partition(ROWS, {"by": "site"}) == {"n": list(range(0, 60, 2)), "w": list(range(1, 60, 2))}
    named = [{**row, "key": f"k{i}"} for i, row in enumerate(ROWS)]
    changed = [{**row, "text": "another"} for row in named]
    assert fedtorch.partition(named, {"iid": 3}, id="key") == fedtorch.partition(changed, {"iid": 3}, id="key")
    assert fedtorch.partition(named, {"iid": 3}) != fedtorch.partition(changed, {"iid": 3})


@pytest.mark.parametrize(
    ("rows", "rule", "error", "said"),
    [
        (
            ROWS,
            {"iid": 3, "by": "site"},
            fedtorch.ConfigError,
            "exactly one rule says who owns a row, found by and iid",
        ),
        (ROWS, {"dirichet": {}}, fedtorch.ConfigError, "unknown key `task.data.clients.dirichet`; did you mean `diri"),
        (ROWS, {"iid": 0}, fedtorch.ConfigError, "task.data.clients.iid is 0 but should be"),
        (ROWS, {"iid": 61}, fedtorch.ConfigError, "task.data.clients.iid is 61 but there are 60 rows"),
        (ROWS, {"by": "hospital"}, fedtorch.ConfigError, "the rows come without the column `hospital`"),
        (ROWS, {"shards": {"number": 3, "of": "tag"}}, fedtorch.ConfigError, "tag, but the rows have no such column"),
        ("x y".split(), {"by": "site"}, fedtorch.ConfigError, "by is site, a column, but the rows are no dicts"),
        ([*ROWS, {"text": "no label"}], {"shards": {"number": 3}}, fedtorch.DataError, "row 61: the class in column"),
        ([], {"iid": 2}, fedtorch.DataError, "there are no rows to deal to 2 clients"),
        ([0.5, 1.5], {"shards": {"number": 2}}, fedtorch.DataError, "row 1: the class .* is a float"),
    ],
)
def test_what_cannot_be_dealt_is_named(rows: Any, rule: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        fedtorch.partition(rows, rule)


CONFIG = {
    "task": {
        "name": "text_classification",
        "model": {"random": "bert", "hidden_size": 16},
        "data": {"source": "rows.jsonl", "clients": {"dirichlet": {"alpha": 1, "number": 3, "min_size": 2}}},
    }
}


def test_a_configs_data_are_dealt_as_the_command_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("own.yaml").write_text(json.dumps(CONFIG))  # JSON is YAML
    assert main(["data", "partition", "own.yaml", "--out", "parts", "--set", "task.data.seed=7"]) == 0
    found = fedtorch.partition(CONFIG, overrides={"task.data.seed": 7})
    assert found == read_partition(Path("parts")) == fedtorch.partition("own.yaml", overrides=["task.data.seed=7"])
    assert found != fedtorch.partition(CONFIG)
    write_partition(Path("again"), found)
    assert read_partition(Path("again")) == found
    with pytest.raises(fedtorch.ConfigError, match="task.name is text2sql, whose data"):
        fedtorch.partition("smoke/fedavg")
