"""What is seen of a column, what keys of `task.data` mean where they are left out, and rows that wait on disk."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from own_rows import write_rows

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.client_rule import ClientRule, Dirichlet, DirichletClients, Pathological, Shards
from fedtorch.data.own.columns import LOOKED_AT, Column, look
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.data.own.row_store import RowStore
from fedtorch.data.own.rows import Row, content_digest
from fedtorch.data.own.source import open_tables
from fedtorch.tasks.labelled_texts import LabelledTexts


def column(*values: Any, name: str = "x") -> Column:
    found = Column(name)
    for value in values:
        found.add(value)
    return found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b c"], "text"),
        ([1, 2], "whole"),
        ([1, 2.5], "number"),
        ([True, False], "flag"),
        ([["a"], ["b", "c"]], "words"),
        ([[1, 2], [3]], "numbers"),
        ([[1, "a"]], "other"),
        ([[1, True]], "other"),
        ([[{"role": "user", "content": "a"}]], "turns"),
        ([[{"start": 0, "end": 1, "label": "PER"}], [[0, 1, "PER"]]], "spans"),
        ([{"start": [0], "end": [1], "label": ["PER"]}], "spans"),
        ([{"start": [0], "end": 1}], "object"),
        ([{"a": 1}], "object"),
        ([[{"a": 1}]], "objects"),
        (["a", 1], "text"),
        ([1, "a", True], "other"),
        (["a", True], "other"),
        (["[1, 2]", [3]], "numbers"),
        ([1.0, 2], "whole"),
        ([None, "", []], "empty"),
    ],
)
def test_a_column_is_of_the_kind_of_all_its_values(values: list[Any], kind: str) -> None:
    assert column(*values).kind == column(None, *values).kind == kind


def test_sizes_and_values_of_a_column_by_hand() -> None:
    texts = column("a b c", "d", "d", None, "")
    assert (texts.words, texts.distinct, texts.missing) == (5 / 3, 2, 2) and texts.values == {"a b c": 1, "d": 2}
    assert [texts.share_below(share) for share in (0.0, 0.5, 0.99)] == [1, 1, 4]  # tokens
    assert column().words == column().share_below(0.5) == 0
    lists = column(["a", "b"], ["a"])
    assert lists.sizes == [2, 1] and lists.values == {"a": 2, "b": 1}
    talk = column([{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}])
    assert talk.sizes == [5] and not talk.values  # words, and the two roles
    assert column(1, name="hospitalId").parts == column(1, name="hospital-ID").parts == {"hospital", "id"}


def test_tags_that_begin_inside_are_noticed() -> None:
    assert not column(["B-PER", "I-PER", "O"]).begins_inside and not column("I-PER").begins_inside
    assert column(["O", "I-PER"]).begins_inside and column(["I-PER"], ["O"]).begins_inside
    assert column(["B-LOC", "I-PER"]).begins_inside and not column([1, 2]).begins_inside


def test_numbers_may_be_written_as_texts_but_all_of_them() -> None:
    assert column(1).is_numeric and column(1.5).is_numeric and column("1", "2.5e3").is_numeric
    assert not column("1", "two").is_numeric and not column(True).is_numeric


def test_a_source_is_looked_at_evenly_and_its_rows_are_counted(tmp_path: Path) -> None:
    rows: list[Any] = [{"text": f"t{i}", "home": f"h{i % 3}"} for i in range(LOOKED_AT + 2)]
    with open_tables(write_rows(tmp_path / "rows.jsonl", rows), tmp_path) as tables:
        found = look(tables, {"home"})
    draw = Random(0)  # of more rows than `LOOKED_AT` the first, and of the others every second by chance
    drawn = {"t0", *(f"t{i}" for i in range(1, len(rows)) if draw.random() < 0.5)}
    assert (found.rows, found.seen) == (5002, len(drawn)) and found.values == {"home": {"h0", "h1", "h2"}}
    assert found.columns["text"].values == dict.fromkeys(drawn, 1)
    with open_tables(write_rows(tmp_path / "few.jsonl", rows[:5]), tmp_path) as tables:
        assert look(tables, ()).seen == 5


@pytest.mark.parametrize(
    ("cls", "known"),
    [
        (SplitRule, {"dev": 0.1, "test": 0.1, "column": None, "held_out": (), "stratify": False}),
        (
            OwnData,
            {
                "labels": (),
                "id": None,
                "seed": 42,
                "person": None,
                "skip_bad_rows": 0,
                "tokenizer_size": 2000,
                "separator": None,
                "encoding": "utf-8",
                "format": None,
                "decimal": ".",
                "prepared": None,
            },
        ),
        (Dirichlet, {"of": "label", "min_size": 10, "balanced": False, "parity": ""}),
        (DirichletClients, {"of": "label"}),
        (Shards, {"per_client": 2, "of": "label"}),
        (Pathological, {"of": "label"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_key_that_an_old_config_leaves_out_means_what_it_meant(cls: type, known: dict[str, Any]) -> None:
    found = {one.name: one.default for one in fields(cls) if one.default is not MISSING}  # type: ignore[arg-type]
    assert found == known


def test_something_is_left_to_train() -> None:
    SplitRule(0.5, 0.49)
    SplitRule("dev.jsonl", 0.9)
    for shares in ((0.5, 0.5), (0.75, 0.5)):
        with pytest.raises(ValueError, match=f"dev and test take {sum(shares):g} of every client's rows"):
            SplitRule(*shares)


def test_rows_elsewhere_are_not_dealt() -> None:
    data = OwnData("rows.jsonl", {"text": "said"}, ClientRule(iid=3), SplitRule(0.2, 0.3), ("a",), "key", prepared="p")
    alone = data.alone("new.jsonl")
    assert alone == OwnData("new.jsonl", {"text": "said"}, ClientRule(by="file"), SplitRule(0.0, 0.0), ("a",))
    assert data.alone("new.jsonl", {}).columns == {}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({}, "exactly one rule says who owns a row, found none"),
        ({"by": "home", "iid": 2}, "exactly one rule says who owns a row, found by and iid"),
        ({"sizes": "linear"}, "task.data.clients.sizes needs task.data.clients.number"),
        ({"iid": 2, "number": 3}, "task.data.clients.number is 3 but belongs to `sizes` only, and the rule is `iid`"),
        ({"by": ""}, "task.data.clients.by"),
    ],
)
def test_one_rule_says_whose_rows_are(rule: dict[str, Any], why: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=why):
        ClientRule(**rule)
    assert ClientRule(sizes="linear", number=3).num_clients == ClientRule(iid=3).num_clients == 3
    assert ClientRule(shards=Shards(4)).num_clients == 4 and ClientRule(by="home").num_clients is None
    assert ClientRule(shards=Shards(4)).label_column == "label" and ClientRule(iid=3).label_column is None


def test_rows_come_back_from_their_file_with_their_digests(tmp_path: Path) -> None:
    form = LabelledTexts("single_label", ())
    given = [
        Row({"text": text, "label": "x"}, owner, None, "") for text, owner in (("größe", "a"), ("b", "b"), ("", "a"))
    ]
    store = RowStore(tmp_path, form, lambda content: content["label"])
    assert len(store) == 0 and list(store.keep(given)) == given and len(store) == 3
    assert [store.content(i) for i in range(3)] == [row.content for row in given]
    assert (
        store.owners.of() == ["a", "b", "a"] and store.owners.of([1]) == ["b"] and store.owners.distinct == ["a", "b"]
    )
    some = store.rows([2, 0])
    assert list(some) == [given[2].content, given[0].content] and some.labels == ["x", "x"] and len(store.rows()) == 3
    assert some.digests.tolist() == np.array([content_digest([t]) for t in ("", "größe")], dtype="S16").tolist()
