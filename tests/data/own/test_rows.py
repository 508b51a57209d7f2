"""What is said of columns that are not there and of rows that cannot be used."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from own_rows import own, write_rows

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.data.own.rows import Row, content_digest, read_rows
from fedtorch.data.own.source import Table, open_tables
from fedtorch.tasks.labelled_texts import LabelledTexts

GOOD = {"text": "sunny", "label": "good", "home": "north"}
SINGLE = LabelledTexts("single_label", ("good", "bad"))


def read(folder: Path, rows: list[Any], form: LabelledTexts = SINGLE, **changes: Any) -> tuple[list[Row], list[str]]:
    """The rows of a file `rows.jsonl`."""
    data = own(write_rows(folder / "rows.jsonl", rows), **changes)
    with open_tables(data.source, folder) as tables:
        return all_rows(tables, data, form)


def all_rows(tables: list[Table], data: OwnData, form: LabelledTexts) -> tuple[list[Row], list[str]]:
    problems: list[str] = []
    return list(read_rows(tables, data, form, problems)), problems


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a client is a mapping": ({"home": {}}, "the column `home` holds a dict; a client's name is a text or a number"),
    "a client is a list": ({"home": [["a"]]}, "the column `home` holds a list"),
    "a client is true": ({"home": True}, "the column `home` holds a bool"),
    "a client is inf": ({"home": math.inf}, "the column `home` holds a number that is not finite"),
    "a client is nan": ({"home": math.nan}, "the column `home` holds a number that is not finite"),
    "a column is missing": ({"text": None}, "`text` is missing or empty"),
    "a text is empty": ({"text": ""}, "`text` is missing or empty"),
    "a text is a number": ({"text": 7}, "the text is a int, expected a string"),
    "a text is a list": ({"text": ["a"]}, "the text is a list, expected a string"),
    "a label is empty": ({"label": ""}, "`label` is missing or empty"),
    "a label is unknown": ({"label": "goood"}, "the label 'goood' is none of task.data.labels: good, bad"),
    "a label is a number": ({"label": 1}, "the label '1' is none of task.data.labels: good, bad"),
    "a label is a broken number": ({"label": 1.5}, "the label is a float, expected a string or a whole number"),
    "a label is a fraction": ({"label": 1.5}, "the label is a float, expected a string or a whole number"),
    "a label is a list": ({"label": ["good"]}, "the label is a list; set task.problem to multi_label"),
    "nobody owns it": ({"home": None}, "the column `home` is empty, so the row has no client"),
    "a blank owns it": ({"home": " "}, "the column `home` is empty, so the row has no client"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_row_that_cannot_be_used_is_named_with_file_and_line(case: str, tmp_path: Path) -> None:
    change, message = BAD[case]
    with pytest.raises(DataError) as caught:
        read(tmp_path, [GOOD, GOOD | change])
    assert f"{tmp_path}/rows.jsonl:2: {message}" in str(caught.value)
    assert "sunny" not in str(caught.value)  # a client's text stays where it is


def test_numbers_can_be_labels(tmp_path: Path) -> None:
    given = [GOOD | {"label": 1}, GOOD | {"label": "1"}, GOOD | {"label": "01"}]
    rows, _ = read(tmp_path, given, LabelledTexts("single_label", ()))
    assert [row.content["label"] for row in rows] == ["1", "1", "01"]


@pytest.mark.parametrize(("label", "expected"), [(3, 3.0), ("3.5", 3.5), ("-1e3", -1000.0)])
def test_a_number_to_be_found_may_be_written_as_text(label: Any, expected: float, tmp_path: Path) -> None:
    rows, _ = read(tmp_path, [GOOD | {"label": label}], LabelledTexts("regression", ()))
    assert rows[0].content["label"] == expected


@pytest.mark.parametrize("label", ["good", [1], True, math.inf, "nan", 10**400])
def test_what_is_no_number_is_refused(label: Any, tmp_path: Path) -> None:
    message = rf"rows.jsonl:1: the label is a {type(label).__name__}, expected a finite number"
    with pytest.raises(DataError, match=message):
        read(tmp_path, [GOOD | {"label": label}], LabelledTexts("regression", ()))


def test_a_row_may_have_several_labels_or_none(tmp_path: Path) -> None:
    form = LabelledTexts("multi_label", ("good", "bad"))
    rows, _ = read(tmp_path, [GOOD | {"label": found} for found in ([], ["bad"], ["good", "bad", "bad"])], form)
    assert [row.content["label"] for row in rows] == [[], ["bad"], ["bad", "good"]]
    with pytest.raises(DataError, match="rows.jsonl:1: the label is a str, expected a list of labels"):
        read(tmp_path, [GOOD], form)


def test_as_many_bad_rows_as_are_allowed_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = [GOOD, GOOD | {"text": ""}, GOOD, GOOD | {"label": "?"}]
    rows, problems = read(tmp_path, given, skip_bad_rows=2)
    assert len(rows) == 2 and len(problems) == 2
    assert [record.getMessage().count("rows.jsonl:") for record in caplog.records] == [1, 1]
    with pytest.raises(DataError, match=r"rows.jsonl:2: .*\n.*rows.jsonl:4: .*\n.*task.data.skip_bad_rows"):
        read(tmp_path, given, skip_bad_rows=1)


def test_bytes_that_are_no_text_are_a_bad_row_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"text": "\xff"}\n')
    data = own(str(path), skip_bad_rows=1)
    with open_tables(data.source, tmp_path) as tables:
        rows, problems = all_rows(tables, data, SINGLE)
    assert len(rows) == 1 and problems[0].startswith(f"{path}:2: byte 11 is not UTF-8 (0xff); save")


def test_only_the_first_twenty_problems_are_shown(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, [GOOD | {"text": ""}] * 100)
    assert str(caught.value).count("rows.jsonl:") == 20 and "and more" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"text": "txt"}}, r"data.columns.text: .*rows.jsonl has no column `txt`; did you mean `text`"),
        ({"columns": {"text": "body"}}, r"has no column `body`; there are text, label, home"),
        ({"columns": {"txt": "text"}}, r"task.data.columns has `txt`, of which .* did you mean `text`\?"),
        ({"columns": {"zzz": "text"}}, r"choose among text, label, text_pair"),
        ({"id": "number"}, r"task.data.id: .* has no column `number`"),
        ({"splits": SplitRule(column="splt")}, r"task.data.splits.column: .* has no column `splt`"),
        ({"splits": SplitRule(dev="validation")}, r"task.data.splits.dev is 'validation', .*splits are not named"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_is_answered_with_the_nearest(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, [GOOD], **changes)


def test_a_column_that_only_later_rows_have_is_there(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, [GOOD, GOOD | {"text_pair": "and dry"}])
    assert [row.content.get("text_pair") for row in rows] == [None, "and dry"]


@pytest.mark.parametrize(
    ("value", "split"), [("train", "train"), ("validation", "dev"), ("test", "test"), ("dev", "dev")]
)
def test_a_column_may_name_the_split(value: str, split: str, tmp_path: Path) -> None:
    rows, _ = read(tmp_path, [GOOD | {"part": value}], splits=SplitRule(column="part"))
    assert [row.split for row in rows] == [split]


def test_another_word_in_the_column_of_splits_is_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:1: the column `part` has another value than train, dev"):
        read(tmp_path, [GOOD | {"part": "exam"}], splits=SplitRule(column="part"))


def test_splits_of_a_source_are_named_or_left_out_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from datasets import Dataset, DatasetDict

    names = ("train", "validation", "exam", "unsupervised")
    DatasetDict({name: Dataset.from_list([GOOD]) for name in names}).save_to_disk(str(tmp_path / "saved"))
    data = own(str(tmp_path / "saved"), splits=SplitRule(test="exam"))
    with open_tables(data.source, tmp_path) as tables:
        caplog.set_level(logging.WARNING)
        rows, _ = all_rows(tables, data, SINGLE)
        assert [row.split for row in rows] == ["train", "dev", "test"]
        assert "saved/unsupervised is not used" in caplog.text
        with pytest.raises(ConfigError, match="task.data.splits.dev is 'exm', .*did you mean exam"):
            all_rows(tables, own(str(tmp_path / "saved"), splits=SplitRule(dev="exm")), SINGLE)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [("  Sunny\tDAY ", True), ("ｓｕｎｎｙ day", True), ("sunny day!", False), ("sunnyday", False)],
)
def test_texts_count_as_the_same_whatever_their_case_and_spaces(other: str, is_same: bool) -> None:
    assert (content_digest(["sunny day"]) == content_digest([other])) is is_same
    assert content_digest(["a", "b"]) != content_digest(["ab"]) != content_digest(["a b"])
