"""Ids of rows: the same wherever a row stands, different for every row, and nothing of a row in a message."""

from __future__ import annotations

import hashlib
import random
from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.core.errors import DataError
from fedtorch.data.own.partition import row_ids

ROW = st.dictionaries(st.sampled_from(["text", "label", "z"]), st.one_of(st.none(), st.integers(), st.text()))


def test_an_id_is_the_digest_of_the_row_as_json_with_sorted_keys() -> None:
    expected = hashlib.sha256('{"a":[1,null],"text":"é"}'.encode()).hexdigest()[:32]
    assert list(row_ids([{"text": "é", "a": [1, None]}], None)) == [expected]


def test_the_order_of_columns_does_not_matter_and_their_names_do() -> None:
    one, two, three = (
        list(row_ids([{"a": 1, "b": 2}], None)),
        list(row_ids([{"b": 2, "a": 1}], None)),
        list(row_ids([{"a": 1, "c": 2}], None)),
    )
    assert one == two != three


def test_equal_rows_are_numbered_in_order() -> None:
    first, other, second, third = row_ids([{"t": "x"}, {"t": "y"}, {"t": "x"}, {"t": "x"}], None)
    assert other != first and second == f"{first}-2" and third == f"{first}-3"


@given(st.lists(ROW, max_size=30), st.randoms(use_true_random=False))
def test_ids_are_different_and_the_same_set_in_any_order(rows: list[dict[str, Any]], random_: random.Random) -> None:
    ids = row_ids(iter(rows), None)
    assert len(set(ids)) == len(ids) == len(rows)
    shuffled = rows.copy()
    random_.shuffle(shuffled)
    assert sorted(row_ids(shuffled, None)) == sorted(ids)


def test_values_that_json_has_no_form_for() -> None:
    rows = [{"t": b"\x00"}, {"t": "00"}, {"t": date(2020, 1, 2)}, {"t": datetime(2020, 1, 2)}, {"t": float("nan")}]
    assert len(set(row_ids([*rows, {"t": "\ud800"}], None))) == 6
    with pytest.raises(DataError, match="row 2 has no digest: it holds a object; name a column"):
        row_ids([{"t": 1}, {"t": object()}], None)
    with pytest.raises(DataError, match="row 1 has no digest: TypeError"):
        row_ids([{"t": 1, 2: 3}], None)  # type: ignore[dict-item]


def test_a_column_with_ids() -> None:
    assert list(row_ids([{"id": "b"}, {"id": 7}, {"id": "a"}], "id")) == ["b", "7", "a"]
    assert list(row_ids([], "id")) == list(row_ids([], None)) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"id": "secret"}, {"id": "b"}, {"id": "secret"}], "rows 1 and 3 have the same value in the id column `id`"),
        ([{"id": 1}, {"id": "1"}], "rows 1 and 2"),
        ([{"id": 1}, {}], "row 2 has nothing in its id column `id`"),
        ([{"id": ""}], "row 1 has nothing"),
        ([{"id": 0.5}], "row 1 has a float"),
        ([{"id": True}], "row 1 has a bool"),
    ],
)
def test_ids_that_cannot_be_used_are_named_by_row(rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        row_ids(rows, "id")
    assert "secret" not in str(caught.value)
