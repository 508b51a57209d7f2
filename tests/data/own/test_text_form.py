"""Separators, encodings, CoNLL files and columns within columns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from own_rows import own, write_rows

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.conll import looks_like_conll
from fedtorch.data.own.keys import OwnData
from fedtorch.data.own.nested import leaves, split_path, value_at
from fedtorch.data.own.rows import columns_of, read_rows
from fedtorch.data.own.source import column_names, open_tables, rows_of
from fedtorch.data.own.text_form import TextForm, separator_of
from fedtorch.tasks.labelled_texts import LabelledTexts

FORM = LabelledTexts("single_label", ())
UMLAUTS = "Grüße aus Köln, schön"


def read(file: Path, form: TextForm | None = None, columns: Sequence[str] = ("text", "label")) -> list[Any]:
    with open_tables(str(file), file.parent, form) as tables:
        return [row for table in tables for _, row in rows_of(table, {name: name for name in columns})]


@pytest.mark.parametrize(
    ("name", "content", "separator"),
    [
        ("a.csv", "text,label\na b,x\n", ","),
        ("a.csv", "text;label\nrain, cold;x\nsun;y\n", ";"),
        ("a.csv", "text|label\nrain, cold; grey|x\n", "|"),
        ("a.csv", "text\tlabel\nrain\tx\n", "\t"),
        ("a.tsv", "text,label\nrain,x\n", ","),
        ("a.tsv", "text\tlabel\nrain, cold\tx\n", "\t"),
        # a header that comma and semicolon cut: the rows decide
        ("a.csv", "Name, Vorname;text;label\nA, B;rain;x\nC;sun, warm, dry;y\n", ";"),
        ("a.csv", "text,note;more\nrain,x\nsun,y\n", ","),
        # what the ending promises where nothing tells
        ("a.csv", "text\nrain; cold\n", ","),
        ("a.csv", "", ","),
        ("a.csv", 'text;label\n"rain; cold\nand grey";x\n', ";"),
    ],
)
def test_the_separator_is_the_one_by_which_lines_agree(name: str, content: str, separator: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert separator_of(tmp_path / name, TextForm()) == separator


def test_a_separator_that_is_said_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na;b,x\n")
    assert read(tmp_path / "a.csv", TextForm(separator=";"), ("text,label",))[
        0
    ].args  # one cell in the header, two here
    (tmp_path / "b.csv").write_text("text#label\na;b#x\n")
    assert read(tmp_path / "b.csv", TextForm(separator="#")) == [{"text": "a;b", "label": "x"}]


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16", "utf-8", "cp037"])
@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".tsv", ".txt", ".conll"])
def test_text_files_are_read_in_the_encoding_that_is_said(encoding: str, ending: str, tmp_path: Path) -> None:
    row, words = {"text": UMLAUTS, "label": "ß"}, UMLAUTS.split()
    content = {
        ".jsonl": json.dumps(row, ensure_ascii=False) + "\n\n" + json.dumps(row, ensure_ascii=False),
        ".json": json.dumps([row, row], ensure_ascii=False, indent=1),
        ".csv": f'text;label\n"{UMLAUTS}";ß\n{UMLAUTS};ß\n',
        ".tsv": f"text\tlabel\n{UMLAUTS}\tß\n{UMLAUTS}\tß\n",
        ".txt": f"{UMLAUTS}\n\n{UMLAUTS}\n",
        ".conll": "".join(f"{word} O\n" for word in words) + "\n" + "".join(f"{word} O\n" for word in words),
    }[ending]
    (tmp_path / f"a{ending}").write_bytes(content.encode(encoding))
    found = read(tmp_path / f"a{ending}", TextForm(encoding), ("text", "label", "tokens"))
    expected = {".txt": {"text": UMLAUTS}, ".conll": {"tokens": words}}.get(ending, row)
    assert [{key: value for key, value in one.items() if value is not None} for one in found] == [expected] * 2


@pytest.mark.parametrize(
    ("content", "encoding", "said"),
    [
        (
            "text;label\nein Satz;x\nschön;x\n".encode("cp1252"),
            "utf-8",
            ":3: line 3, byte 4 is not UTF-8 (0xf6); save the",
        ),
        (
            "text;label\nschön;x\n".encode("utf-16"),
            "utf-8",
            ":1: the header: line 1, byte 1 is not UTF-8 (0xff); files that",
        ),
        (b"text,label\na\x81,x\n", "cp1252", ":2: line 2, byte 2 is not cp1252 (0x81); correct task.data.encoding"),
        (b"text,label\na,x\n", "utf-16", " or after: not utf-16 (UnicodeError); correct task.data.encoding"),
    ],
)
def test_bytes_of_another_encoding_are_named_with_the_key(
    content: bytes, encoding: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(content)
    try:
        [problem] = [str(row) for row in read(file, TextForm(encoding)) if isinstance(row, ValueError)]
        problem = f"{file}:{3 if encoding == 'utf-8' else 2}: {problem}"
    except DataError as error:
        problem = str(error)
    assert said in problem and problem.startswith(str(file))


@pytest.mark.parametrize("name", ["klingon", "rot13", "hex", "unicode_escape", ""])
def test_an_encoding_that_is_none_of_texts_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"task\.data\.encoding is '.*', which Python knows no encoding of texts by"):
        OwnData("x", encoding=name)


@pytest.mark.parametrize("mark", ["", ",,", "a", '"', "\n"])
def test_a_separator_that_cannot_be_one_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match=r"task\.data\.separator is '.*' but should be one character"):
        OwnData("x", separator=mark)


CONLL = """-DOCSTART- -X- O O

EU NNP B-ORG
rejects VBZ O

# a comment of a page
#\thttps://example.org
Peter\tNNP\tB-PER
Blackburn\tNNP\tI-PER
# SYM O
"""


def sentences(folder: Path, content: str, ending: str = ".conll", form: TextForm | None = None) -> list[Any]:
    (folder / f"a{ending}").write_text(content)
    return read(folder / f"a{ending}", form, ("tokens", "tags"))


def test_a_sentence_of_a_conll_file_is_a_row(tmp_path: Path) -> None:
    assert sentences(tmp_path, CONLL) == [
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"tokens": ["Peter", "Blackburn", "#"], "tags": ["B-PER", "I-PER", "O"]},
    ]
    with open_tables(str(tmp_path / "a.conll"), tmp_path) as [table]:
        assert [table.where(i) for i in range(2)] == [f"{tmp_path}/a.conll:3", f"{tmp_path}/a.conll:8"]


def test_a_column_that_counts_words_is_none_of_them(tmp_path: Path) -> None:
    content = "1\t1990\tO\n\n1\tAnna\tB-PER\n2\twent\tO\n\n1\t2\tO\n"
    found = [row["tokens"] for row in sentences(tmp_path, content)]
    assert found == [["1990"], ["Anna", "went"], ["2"]]
    assert [row["tokens"] for row in sentences(tmp_path, "1 CD O\n\nAnna NN O\nwent VB O\n")] == [
        ["1"],
        ["Anna", "went"],
    ]


def test_a_sentence_with_other_columns_is_named_with_its_line(tmp_path: Path) -> None:
    found = sentences(tmp_path, "Anna B-PER\nwent O\n\nto\nRome B-LOC\n\nshe O\n")
    assert str(found[1]) == "line 4 has 1 columns, the first one 2; give all lines as many"
    assert [isinstance(row, dict) for row in found] == [True, False, True]


def test_other_endings_are_conll_files_where_that_is_said(tmp_path: Path) -> None:
    form = TextForm(format="conll")
    assert sentences(tmp_path, CONLL, ".txt", form) == sentences(tmp_path, CONLL, ".conll")
    assert sentences(tmp_path, CONLL, ".testa", form) == sentences(tmp_path, CONLL, ".conll")
    assert looks_like_conll(CONLL.replace("\t", " ").splitlines()[3:])
    assert not looks_like_conll(["a plain text", "", "of words O"])
    assert not looks_like_conll(["a O", "b O", ""])


NESTED = [
    {"body": {"text": "rain", "meta": {"site": "north"}}, "label": "x", "plain.text": "p", "both": {"a": 1},
     "both.a": 2},
    {"body": None, "label": "y", "plain.text": "q", "both": {"a": 3}, "both.a": 4},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_lies_within_a_column_is_named_by_a_path_and_a_column_called_so_wins(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write_rows(file, NESTED)
    else:
        from datasets import Dataset

        Dataset.from_list(NESTED).to_parquet(str(file))
    columns = ("body.text", "body.meta.site", "plain.text", "both.a")
    assert [list(row.values()) for row in read(file, None, columns)] == [
        ["rain", "north", "p", 2],
        [None, None, "q", 4],
    ]
    with open_tables(str(file), tmp_path) as tables:
        assert {"body.text", "body.meta.site", "plain.text", "both.a"} <= set(column_names(tables))
        data = own(str(file), columns={"text": "body.text"}, clients=own("x").clients)
        with pytest.raises(ConfigError, match=r"task\.data\.clients\.by: .* has no column `home`"):
            columns_of(tables, data, FORM)
        data = own(str(file), columns={"text": "body.txt"})
        with pytest.raises(ConfigError, match=re.escape("has no column `body.txt`; did you mean `body.text`?")):
            columns_of(tables, data, FORM)


def test_clients_ids_and_splits_may_lie_within_columns_too(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": "ab"[i % 2], "meta": {"home": f"h{i % 3}", "n": i}} for i in range(9)]
    data = OwnData(
        write_rows(tmp_path / "a.jsonl", rows),
        clients=type(own("x").clients)(by="meta.home"),
        id="meta.n",
    )
    with open_tables(data.source, tmp_path) as tables:
        found = list(read_rows(tables, data, FORM, []))
    assert [(row.owner, row.id) for row in found] == [(f"h{i % 3}", i) for i in range(9)]


def test_names_of_labels_are_found_within_columns(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, List, Value

    name = ClassLabel(names=["ham", "spam"])
    features = Features(
        {"body": {"label": name, "text": Value("string")}, "spans": List({"label": name, "start": Value("int64")})}
    )
    rows = [{"body": {"label": 1, "text": "t"}, "spans": [{"label": 0, "start": 3}]}]
    Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    found = read(tmp_path / "saved", None, ("body.label", "spans"))
    assert found == [{"body.label": "spam", "spans": [{"label": "ham", "start": 3}]}]


@pytest.mark.parametrize(
    ("value", "decimal", "number"),
    [("3,5", ",", 3.5), ("1.234,5", ",", 1234.5), ("-2", ",", -2.0), (3.5, ",", 3.5), ("3.5", ".", 3.5)],
)
def test_a_number_of_a_table_may_have_a_comma(value: Any, decimal: str, number: float) -> None:
    form = LabelledTexts("regression", (), decimal=decimal)
    assert form.convert({"text": "t", "label": value})["label"] == number


def test_a_comma_that_was_not_said_is_an_error_with_the_key() -> None:
    with pytest.raises(ValueError, match=r'a number with a comma; set task\.data\.decimal to ","'):
        LabelledTexts("regression", ()).convert({"text": "t", "label": "3,5"})


@pytest.mark.parametrize("value", ["3.5", "1.5,2", "1,2,3", "", "1234.567"])
def test_points_that_are_none_of_thousands_are_refused_where_commas_stand_before_decimals(value: str) -> None:
    with pytest.raises(
        ValueError, match=r"a finite number, .* with a comma before its decimals, as task\.data\.decimal"
    ):
        LabelledTexts("regression", (), decimal=",").convert({"text": "t", "label": value})


def test_whole_numbers_as_floats_are_labels() -> None:
    assert LabelledTexts("single_label", ("2",)).convert({"text": "t", "label": 2.0})["label"] == "2"
    assert LabelledTexts("multi_label", ()).convert({"text": "t", "label": "[2.0, 1]"})["label"] == ["1", "2"]
    for value in (2.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="the label is a float, expected a string or a whole number"):
            LabelledTexts("single_label", ()).convert({"text": "t", "label": value})


def test_new_keys_change_what_is_prepared_only_where_they_are_set() -> None:
    assert not {"separator", "encoding", "format", "decimal"} & OwnData("x").options().keys()
    assert OwnData("x", separator=";", decimal=",").options()["separator"] == ";"


def test_paths_are_found_five_steps_deep_in_objects_of_two_hundred_keys() -> None:
    assert list(leaves({"a": 1, "b": {"c": 2, "d": {"e": [3]}}})) == ["b.c", "b.d.e"]
    six: dict[str, Any] = {"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}
    assert list(leaves(six)) == ["a.b.c.d.e.f"]
    for keys, found in ((200, 200), (201, 0)):
        assert sum("." in path for path in leaves({"a": {str(key): 1 for key in range(keys)}})) == found
    assert list(leaves({"x": {"a": {str(key): 1 for key in range(201)}}})) == ["x.a"]


def test_the_longest_beginning_of_a_path_that_is_a_column_is_meant() -> None:
    assert split_path("a.b.c", ["a", "a.b"]) == ("a.b", ["c"]) and split_path("a.b", ["a", "a.b"]) == ("a.b", [])
    assert split_path("a.b.c", ["a"]) == ("a", ["b", "c"]) and split_path("x.y", ["a"]) == ("x.y", [])
    assert (
        value_at({"b": {"c": 1}}, ["b", "c"]) == 1 and value_at({"b": 1}, ["b", "c"]) is None and value_at(3, []) == 3
    )
