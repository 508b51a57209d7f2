from __future__ import annotations

import json
from pathlib import Path

import pytest
from fedqa_files import TOPICS, medquad_document, put, write_collections

from fedtorch.core.errors import DataError
from fedtorch.data.fedqa import Builder, Collection
from fedtorch.data.fedqa_readers import READERS, public_questions


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_collections(tmp_path)
    return tmp_path


def read(raw: Path, client: str) -> Collection:
    return READERS[client](raw / client)


def test_privacyqa_keeps_published_negatives_and_questions_without_a_relevant_segment(raw: Path) -> None:
    found = read(raw, "privacyqa")
    assert len(found.questions) == 12 and len(found.documents) == 120
    assert found.questions[0].text == "is the lamp shared?"  # trailing blank gone
    assert (len(found.questions[0].positives), len(found.questions[0].negatives)) == (2, 8)
    assert [i for i, question in enumerate(found.questions) if not question.positives] == [3, 7]
    assert found.documents[found.questions[0].positives[0]] == "segment 0 on the lamp and more"


def test_pubmedqa_has_one_positive_a_question(raw: Path) -> None:
    found = read(raw, "pubmedqa")
    assert found.questions[1] == ("101", "does river help?", ("101",), ())
    assert found.documents["101"] == "the river helps 1 ways."


def test_fiqa_joins_three_files_and_reads_answers_as_plain_lines(raw: Path) -> None:
    found = read(raw, "fiqa")
    assert len(found.questions) == 12  # not the 13th, which has no published answers
    assert found.questions[0] == ("0", "where to buy a lamp?", ("50", "70"), ())
    assert found.documents["50"] == 'buy the lamp at "joe\'s"' and found.documents["70"] == "no lamp is for sale"


def test_insuranceqa_pools_both_files_and_leaves_out_questions_with_negatives_only(raw: Path) -> None:
    found = read(raw, "insuranceqa")
    assert len(found.questions) == 12 and len(found.documents) == 36
    assert all(len(question.positives) == 2 and not question.negatives for question in found.questions)
    assert found.notes == {"questions without a positive answer": 12}
    assert found.documents[found.questions[0].positives[0]] == "yes , lamp pay , 0"


def test_medquad_skips_pairs_without_answers_and_tells_sources_apart(raw: Path) -> None:
    found = read(raw, "medquad")
    assert len(found.questions) == len(found.documents) == 12
    assert found.notes == {"pairs without an answer": 4}
    assert found.questions[0] == ("1-01-1", "what is lamp in 1_a_qa?", ("1-01-1",), ())
    assert found.questions[6].positives == ("2-01-1",)
    assert found.documents["2-01-1"] == "a lamp of 2_b_qa"


def test_the_public_pool_has_other_questions_with_mangled_quotation_marks_dropped(raw: Path) -> None:
    assert public_questions(raw)[len(TOPICS) :] == [
        "Where to buy a public share?",
        "is this public?",
        "Is the lamp shared?",
    ]


def test_texts_equal_but_for_case_and_blanks_are_one_and_a_pair_labelled_both_ways_is_positive() -> None:
    builder = Builder()
    for question, answer, relevant in (("A  b", "X", False), ("a B", "x ", True), ("a b", " y", False)):
        builder.pair(builder.question(question), builder.document(answer), relevant)
    found = builder.build()
    assert found.questions == [("000000", "a b", ("000000",), ("000001",))]
    assert found.documents == {"000000": "x", "000001": "y"}


BAD = {
    "no json": (
        "privacyqa",
        "test.jsonl",
        '{"context": "c", "question": "q", "answer": "True"}\n{\n',
        r"jsonl:2 is not J",
    ),
    "no object": ("privacyqa", "test.jsonl", "3\n", r"test.jsonl:1: expected a JSON object with the strings quest"),
    "other label": (
        "privacyqa",
        "test.jsonl",
        '{"context": "c", "question": "q", "answer": "Yes"}\n',
        r"jsonl:1: `ans",
    ),
    "empty question": (
        "privacyqa",
        "test.jsonl",
        '{"context": "c", "question": " ", "answer": "True"}\n',
        r":1: the q",
    ),
    "no positives": (
        "privacyqa",
        "test.jsonl",
        '{"context": "c", "question": "q", "answer": "False"}\n',
        "no question",
    ),
    "broken json": ("pubmedqa", "ori_pqal.json", '{"1":\n{]', r"ori_pqal.json is not JSON .*line 2"),
    "a list": ("pubmedqa", "ori_pqal.json", "[]", "holds a list; expected a JSON object"),
    "no answer": ("pubmedqa", "ori_pqal.json", '{"1": {"QUESTION": "q"}}', "entry 0: not an entry of PubMedQA"),
    "a short row": (
        "fiqa",
        "FiQA_train_question_final.tsv",
        "\tqid\tquestion\n0\t1\n",
        r"final.tsv:2: 2 cells; expected 3",
    ),
    "another header": ("fiqa", "FiQA_train_question_final.tsv", "\tid\tquestion\n", r":1: the header lacks qid"),
    "no tab": ("fiqa", "test_answers.csv", "50\ttext\n51 text\n", r"test_answers.csv:2: expected an answer's number"),
    "no text": ("fiqa", "test_answers.csv", "50\t  \n", r"test_answers.csv:1: the answer is empty"),
    "id twice": ("fiqa", "test_answers.csv", "50\ta\n50\tb\n", r":2: the document id '50' stands for two different"),
    "unknown answer": ("fiqa", "split_qids.json", '{"test_gold": {"0": [9]}}', "answer '9' is not in test_answers.csv"),
    "unknown question": (
        "fiqa",
        "split_qids.json",
        '{"test_gold": {"99": [50]}}',
        "question '99' is not in FiQA_train",
    ),
    "no gold": ("fiqa", "split_qids.json", "{}", "`test_gold` is no object of lists"),
    "label 2": ("insuranceqa", "test.csv", "question,answer,label\nq,a,2\n", r"test.csv:2: `label` is neither"),
    "not XML": ("medquad", "1_A_QA/01.xml", "<Document>\n<QAPairs>\n", r"01.xml:3: not XML"),
    "no question": ("medquad", "1_A_QA/01.xml", "<D><QAPair><Answer>a</Answer></QAPair></D>", "pair 1: no <Question>"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_file_is_named_with_its_line(raw: Path, case: str) -> None:
    client, name, text, message = BAD[case]
    put(raw / client / name, text)
    with pytest.raises(DataError, match=message):
        read(raw, client)


def test_other_encodings_and_missing_files_are_data_errors(raw: Path) -> None:
    (raw / "insuranceqa" / "test.csv").write_bytes(b"question,answer,label\nq,\xff,1\n")
    with pytest.raises(DataError, match=r"test.csv:2: not UTF-8"):
        read(raw, "insuranceqa")
    (raw / "fiqa" / "test_answers.csv").unlink()
    with pytest.raises(DataError, match="test_answers.csv is missing; --raw must be"):
        read(raw, "fiqa")
    with pytest.raises(DataError, match=r"no SOURCE/\*.xml"):
        READERS["medquad"](raw / "fiqa")


def test_messages_hold_no_text_of_the_data(raw: Path) -> None:
    put(raw / "privacyqa" / "test.jsonl", json.dumps({"context": "c", "question": "secret", "answer": "secret"}))
    with pytest.raises(DataError) as caught:
        read(raw, "privacyqa")
    assert "secret" not in str(caught.value)


def test_markup_inside_an_answer_is_read_as_text(raw: Path) -> None:
    put(raw / "medquad" / "1_A_QA" / "01.xml", medquad_document([("Q?", "a <b>bold</b> &amp; <i/>plain word")]))
    assert "a bold & plain word" in read(raw, "medquad").documents.values()
