"""Rows of HydraNet's input: their layout, labels and the way back to the question's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer

from fedtorch.core.errors import ConfigError
from fedtorch.data.hydranet import RowLabels, Rows
from fedtorch.text.byte_bpe import load_subwords, train_subwords

FOUND: dict[str, Any] = {
    "question": "how many goals has Ann Lee , the 3rd",
    "header": ["Name", "Goals", "Rank"],
    "types": ["string", "real", "string"],
    "agg": 4,
    "sel": 1,
    "conds": [[0, 0, "ann lee"], [2, 1, "3"]],
}
WORDS = "how many goals has ann lee , the 3 rd string real name rank go ##als a b".split()


@pytest.fixture(scope="module")
def bert() -> Any:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    known = [word for word in WORDS if word != "goals"]
    return BertTokenizer(vocab={word: place for place, word in enumerate([*special, *known])})


@pytest.fixture(scope="module")
def roberta(tiny_wikisql: Path) -> Any:
    return load_subwords(tiny_wikisql / "tokenizer")


def test_a_bert_row_is_column_then_question(bert: Any) -> None:
    question = Rows(bert, 40).labelled(FOUND)
    assert question is not None
    first, second, third = question.rows
    assert bert.convert_ids_to_tokens(first.ids) == (
        "[CLS] string name [SEP] how many go ##als has ann lee , the 3 rd [SEP]".split()
    )
    assert (first.first, first.last) == (4, 15) and (second.first, second.last) == (5, 16)  # `real go ##als`
    assert first.labels == RowLabels(select=0, where=1, agg=0, op=0, where_num=2, start=9, end=10)
    assert second.labels == RowLabels(select=1, where=0, agg=4, op=0, where_num=2, start=0, end=0)
    assert third.labels == RowLabels(select=0, where=1, agg=0, op=1, where_num=2, start=13, end=13)
    assert question.value(0, (9, 10)) == "Ann Lee" and question.value(2, (13, 13)) == "3"
    assert question.value(0, (6, 6)) == question.value(0, (7, 7)) == "goals"  # a part of a word is the word
    assert question.gold is not None and question.gold.conditions == {0: (0, (9, 10)), 2: (1, (13, 13))}


def test_a_roberta_row_has_two_signs_in_the_middle_and_gives_its_text_back(roberta: Any) -> None:
    question = Rows(roberta, 96).labelled(FOUND)
    assert question is not None
    row = question.rows[0]
    assert row.ids[0] == roberta.cls_token_id and row.ids[-1] == roberta.sep_token_id
    assert row.ids[row.first - 2 : row.first] == [roberta.sep_token_id] * 2
    assert roberta.decode(row.ids[row.first : row.last]).split() == FOUND["question"].replace("3rd", "3 rd").split()
    _, (start, end) = question.gold.conditions[0] if question.gold else (0, (0, 0))
    assert question.value(0, (start, end)) == "Ann Lee"


def test_of_two_conditions_on_a_column_the_last_one_is_the_label(bert: Any) -> None:
    question = Rows(bert, 40).labelled({**FOUND, "conds": [[2, 1, "3"], [2, 0, "ann"]]})
    assert question is not None and question.gold is not None
    assert question.gold.num_conditions == 2 and list(question.gold.conditions) == [2]
    assert question.rows[2].labels is not None and question.rows[2].labels.op == 0


def test_too_long_a_row_loses_the_end_of_the_longer_part_and_with_a_value_the_example(bert: Any) -> None:
    rows = Rows(bert, 12)
    assert rows.labelled(FOUND) is None  # `ann lee` and `3` are cut off
    cut = rows.unlabelled(FOUND)
    assert [len(row.ids) for row in cut.rows] == [12, 12, 12]
    assert bert.convert_ids_to_tokens(cut.rows[1].ids) == (
        "[CLS] real go ##als [SEP] how many go ##als has ann [SEP]".split()
    )
    assert Rows(bert, 12).labelled({**FOUND, "conds": [[1, 0, "many"]]}) is not None
    wide = {**FOUND, "header": ["name " * 20, "Goals", "Rank"]}
    assert bert.convert_ids_to_tokens(Rows(bert, 12).unlabelled(wide).rows[0].ids).count("name") == 4


def test_an_unlabelled_question_is_built_without_its_query(bert: Any) -> None:
    hidden = {key: value for key, value in FOUND.items() if key not in ("agg", "sel", "conds")}
    question = Rows(bert, 40).unlabelled(hidden)
    assert question.gold is None and all(row.labels is None for row in question.rows)
    labelled = Rows(bert, 40).labelled(FOUND)
    assert labelled is not None and [row.ids for row in question.rows] == [row.ids for row in labelled.rows]
    (alone,) = Rows(bert, 40).unlabelled(hidden, with_columns=False).rows
    assert bert.convert_ids_to_tokens(alone.ids) == "[CLS] how many go ##als has ann lee , the 3 rd [SEP]".split()


def test_a_vocabulary_is_the_same_for_the_same_texts_and_knows_every_character(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_subwords([" some words", " and others"], tmp_path / name, size=280)
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
    vocabulary = load_subwords(tmp_path / "a")
    ids = vocabulary(" Ω≠λ", add_special_tokens=False).input_ids
    assert vocabulary.decode(ids) == " Ω≠λ" and vocabulary.unk_token_id not in ids
    with pytest.raises(ConfigError, match="a byte-level vocabulary of size 100 .* its bytes alone need 261"):
        train_subwords([" a"], tmp_path / "c", size=100)


def test_what_is_no_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder; expected one written by save_pretrained"):
        load_subwords(tmp_path / "nothing")
    with pytest.raises(ConfigError):
        load_subwords(tmp_path)  # empty
    with pytest.raises(ConfigError, match="there is no installed package no_such_thing; install it"):
        load_subwords("package:no_such_thing/model")
    with pytest.raises(ConfigError, match="the package fedtorch has no folder 'model'"):
        load_subwords("package:fedtorch/model")
