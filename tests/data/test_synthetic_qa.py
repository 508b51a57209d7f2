from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from fedtorch.core.errors import DataError
from fedtorch.data.folder import read_manifest
from fedtorch.data.qa_folder import read_pool, read_qa_rows
from fedtorch.data.synthetic_qa import ASPECTS, TOPICS, generate, prepare
from fedtorch.metrics.ranking import reciprocal_rank
from fedtorch.text.wordpieces import load_wordpieces
from fedtorch.text.words import read_words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "out"
    prepare(out)
    return out


def test_sizes_are_the_planned_ones_and_no_question_occurs_twice() -> None:
    for client, splits in generate().items():
        assert [len(splits[split]) for split in ("train", "dev", "test")] == [TOPICS[client].train, 20, 40]
        questions = [row.question for rows in splits.values() for row in rows]
        assert len(set(questions)) == len(questions)


def test_right_answers_name_the_subject_and_the_aspect_and_wrong_ones_only_one_of_them() -> None:
    for client, splits in generate().items():
        for row in splits["test"]:
            subject = next(word for word in TOPICS[client].subjects if word in row.question.split())
            asked = next(
                answers
                for forms, answers in ASPECTS.values()
                if row.question in [form.format(subject) for form in forms]
            )
            for answer, label in zip(row.answers, row.labels):
                fits = subject in answer.split(), any(f": {text} " in answer for text in asked)
                assert all(fits) if label else sum(fits) == 1
            assert row.positives in (1, 2) and len(row.labels) - row.positives == 5


def test_the_topics_share_no_subject_and_no_words_but_those_of_the_forms() -> None:
    subjects = [subject for topic in TOPICS.values() for subject in topic.subjects]
    assert len(set(subjects)) == len(subjects)


def test_a_model_that_does_not_look_ranks_no_better_than_chance(folder: Path) -> None:
    # all scores tied: docids decide, and they must not know
    rows = [row for client in TOPICS for split in ("dev", "test") for row in read_qa_rows(folder, client, split)]
    values = [reciprocal_rank([0.0] * len(row.labels), row.labels, row.docids) for row in rows]
    mean = sum(value or 0 for value in values) / len(values)
    assert 0.40 < mean < 0.58  # chance: 0.41 with one right answer of six, 0.56 with two of seven


def test_the_folder_is_complete_and_made_quickly(tmp_path: Path) -> None:
    start = time.process_time()
    prepare(tmp_path / "out")
    assert time.process_time() - start < 3
    manifest = read_manifest(tmp_path / "out")
    assert list(manifest["clients"]) == list(TOPICS)
    tokenizer = load_wordpieces(tmp_path / "out" / "tokenizer")
    words = set(read_words(tmp_path / "out").words)
    for client in TOPICS:
        for split in ("train", "dev", "test"):
            rows = read_qa_rows(tmp_path / "out", client, split)
            assert manifest["clients"][client]["splits"][split]["pairs"] == [row.pairs for row in rows]
            for row in rows:
                ids = tokenizer(row.question, row.answers[0]).input_ids
                assert tokenizer.unk_token_id not in ids and len(ids) <= 28
            assert split != "train" or words >= set(rows[0].question.split())
    pool = read_pool(tmp_path / "out")
    assert len(pool) == 9 * 24 and "how old is the bridge" in pool


def test_same_seed_gives_the_same_data_on_any_machine(folder: Path, tmp_path: Path) -> None:
    # pinned: a change means that published results on this data no longer compare
    rows = {client: {s: [row.__dict__ for row in rows] for s, rows in v.items()} for client, v in generate().items()}
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == "231294cac5607701"
    prepare(tmp_path / "again")
    for file in [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]:
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes(), file


def test_preparing_twice_keeps_the_folder_and_another_seed_is_refused(folder: Path) -> None:
    before = (folder / "manifest.json").stat().st_mtime_ns
    prepare(folder)
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="prepared before with other seed"):
        prepare(folder, seed=1)
