from __future__ import annotations

from pathlib import Path

import pytest
from fedqa_files import put, write_released

from fedtorch.core.errors import DataError
from fedtorch.data.fedqa_released import complete_training, read_released, released_clients
from fedtorch.data.fedqa_rows import Sampling
from fedtorch.data.qa_folder import QARow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_released(tmp_path, "law")
    return tmp_path / "law"


def test_ranked_splits_take_ids_from_the_rank_file_and_others_group_by_text(folder: Path) -> None:
    splits = read_released(folder).splits
    assert released_clients(folder.parent) == ["law"]
    assert splits["test"][0] == QARow("which cloud is it?", ["wrong cloud", "right cloud"], [0, 1], ["d0", "d1"])
    assert [row.docids for row in splits["dev"]] == [["d0", "d1"]] * 4
    assert splits["train"][0] == QARow(
        "what is lamp?", ["a lamp is used", "something else"], [1, 0], ["000000", "000004"]
    )
    assert [row.pairs for row in splits["train"]] == [1, 0, 0, 0, 0]


def test_training_questions_without_negatives_get_bm25_ones_and_those_without_positives_go(folder: Path) -> None:
    rows, notes = complete_training("law", read_released(folder).splits["train"], Sampling())
    assert notes == {"train questions without a positive answer": 1, "train questions with BM25 negatives": 3}
    assert [row.pairs for row in rows] == [1, 5, 5, 5]
    assert rows[1].answers[0] == "a river is used" and rows[1].answers[1:4] == [
        "a lamp is used",  # the words "is" in common, in the order of the file
        "a stone is used",
        "a bread is used",
    ]
    assert rows == complete_training("law", read_released(folder).splits["train"], Sampling())[0]


BAD = {
    "label": ("train.json", '{"question": "q", "answer": "a", "label": 2}', r"train.json:1: `label` is missing or"),
    "no label": ("train.json", '{"question": "q", "answer": "a"}', r"train.json:1: `label` is missing or"),
    "blank": (
        "train.json",
        '{"question": "q", "answer": " ", "label": 1}',
        r"train.json:1: an empty question or answer",
    ),
    "empty": ("train.json", "", "train.json is empty"),
    "lines": ("test.rank", "q0 Q0 d0 0 0 t\n", r"test.rank has 1 lines and .*test.json 8"),
    "fields": ("test.rank", "q0 Q0 d0\n", r"test.rank:1: 3 fields; expected `qid Q0"),
    "labels": ("test.ref", "q0 0 d1 0\n", r"test.rank, pair 2: the label is 1, but not so in test.ref"),
    "two questions": ("test.rank", "q0 Q0 d{} 0 0 t\n", "test.json, pair 3: query id 'q0' stands for two questions"),
    "docid twice": ("test.rank", "q{2} Q0 d0 0 0 t\n", r"occurs twice for query 'q0'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_file_is_named(folder: Path, case: str) -> None:
    name, text, message = BAD[case]
    if "{}" in text:
        text = "".join(text.format(i) for i in range(8))
    if "{2}" in text:
        text = "".join(text.replace("{2}", str(i // 2)) for i in range(8))
    put(folder / name, text)
    if case in ("two questions", "docid twice"):
        ranked = [line.split() for line in text.splitlines()]
        right = {(q, d) for i, (q, _, d, *_) in enumerate(ranked) if i % 2}
        put(folder / "test.ref", "".join(f"{q} 0 {d} 1\n" for q, d in sorted(right)))
        if case == "docid twice":
            rows = (folder / "test.json").read_text().replace('"label": 0', '"label": 1')
            put(folder / "test.json", rows)
    with pytest.raises(DataError, match=message):
        read_released(folder)


def test_a_rank_file_without_its_reference_and_a_missing_split_are_errors(folder: Path) -> None:
    (folder / "dev.ref").unlink()
    with pytest.raises(DataError, match="dev.ref is missing, although dev.rank is there"):
        read_released(folder)
    (folder / "train.json").unlink()
    with pytest.raises(DataError, match="train.json is missing"):
        read_released(folder)
