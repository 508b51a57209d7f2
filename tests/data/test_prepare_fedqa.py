from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fedqa_files import TOPICS, put, write_collections, write_released
from prepared_files import seal

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.client_facts import FACTS
from fedtorch.data.fedqa import CLIENTS, Question
from fedtorch.data.fedqa_rows import Sampling, split_questions
from fedtorch.data.folder import read_manifest
from fedtorch.data.prepare import main
from fedtorch.data.qa_folder import QARow, read_pool, read_qa_rows, write_qa
from fedtorch.text.wordpieces import load_wordpieces
from fedtorch.text.words import read_words

SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fedqa") / "raw"
    write_collections(folder)
    return folder


def run(raw: Path, out: Path, *more: str) -> int:
    small = ("--vocab-size", "400", "--shares", "60", "20", "20")
    return main(["prepare", "fedqa", "--raw", str(raw), "--out", str(out), *small, *more])


@pytest.fixture(scope="module")
def out(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "out"
    assert run(raw, folder) == 0
    return folder


def rows(out: Path, client: str) -> dict[str, list[QARow]]:
    return {split: read_qa_rows(out, client, split) for split in SPLITS}


def test_every_question_is_in_one_split_and_the_manifest_has_exact_sizes(out: Path) -> None:
    manifest = read_manifest(out)
    assert list(manifest["clients"]) == list(CLIENTS)
    for client, entry in manifest["clients"].items():
        found = rows(out, client)
        questions = [row.question for split in SPLITS for row in found[split]]
        assert len(set(questions)) == len(questions)
        assert len(questions) == 12 - manifest["record"]["notes"][client].get(
            "train questions without a positive answer", 0
        )
        for split in SPLITS:
            facts = entry["splits"][split]
            assert facts["pairs"] == [row.pairs for row in found[split]]
            assert facts["rows"] == [len(row.answers) for row in found[split]]
            assert facts["examples"] == len(found[split])
            assert facts["characters"] > sum(len(answer) for row in found[split] for answer in row.answers)


def test_training_rows_have_positives_first_and_five_negatives(out: Path) -> None:
    for client, positives in (("pubmedqa", 1), ("fiqa", 2), ("insuranceqa", 2), ("medquad", 1), ("privacyqa", 2)):
        for row in rows(out, client)["train"]:
            assert row.labels == [1] * positives + [0] * 5
            assert len(set(row.answers)) == len(row.answers)
            assert row.question == row.question.lower() and all(a == " ".join(a.lower().split()) for a in row.answers)


def test_candidates_of_dev_and_test_are_ordered_by_docid(out: Path) -> None:
    for client in CLIENTS:
        for split in ("dev", "test"):
            assert all(row.docids == sorted(row.docids) for row in rows(out, client)[split])


def test_bm25_negatives_share_words_with_the_question(out: Path) -> None:
    row = next(row for row in rows(out, "insuranceqa")["train"])
    assert all("yes , " in answer or " be " in answer or "unrelated" in answer for answer in row.answers)
    assert not {answer for answer, label in zip(row.answers, row.labels) if not label} & set(row.answers[:2])


def test_privacyqa_keeps_given_negatives_and_questions_without_a_positive_only_outside_training(
    raw: Path, out: Path, tmp_path: Path
) -> None:
    found, notes = rows(out, "privacyqa"), read_manifest(out)["record"]["notes"]["privacyqa"]
    without = {split: notes.get(f"{split} questions without a positive answer", 0) for split in SPLITS}
    assert sum(without.values()) == 2
    assert all(row.positives for row in found["train"])
    for split in ("dev", "test"):
        assert sum(not row.positives for row in found[split]) == without[split]
        assert all(len(row.labels) == 10 for row in found[split])
    assert run(raw, tmp_path / "more", "--given-negatives", "7") == 0
    assert {len(row.labels) for row in read_qa_rows(tmp_path / "more", "privacyqa", "train")} == {2 + 7}


def test_tokenizer_words_and_pool_stand_beside_the_clients(out: Path) -> None:
    record = read_manifest(out)["record"]
    tokenizer = load_wordpieces(out / "tokenizer")
    assert len(tokenizer) == record["vocabulary"] <= 400
    for client in CLIENTS:
        texts = [text for row in rows(out, client)["train"] for text in (row.question, *row.answers)]
        assert tokenizer.unk_token_id not in [i for ids in tokenizer(texts).input_ids for i in ids]
    words = read_words(out).words
    assert {"the", "is", "insurance"} <= set(words) and words.index("the") < words.index("insurance")
    assert read_pool(out) == ["where to buy a public share?", "is this public?"]  # not those that a client owns
    assert record["public_questions"] == 2


def test_preparing_again_gives_the_same_bytes(raw: Path, out: Path, tmp_path: Path) -> None:
    assert run(raw, tmp_path / "again") == 0
    files = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    assert len(files) == 5 * 4 + 5
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (out / file).read_bytes(), file


def test_another_seed_gives_another_split_and_is_not_mixed_up(
    raw: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raw, out, "--seed", "1") == 3
    assert "with other seed; remove it or choose another --out" in capsys.readouterr().err
    assert run(raw, tmp_path / "other", "--seed", "1") == 0
    questions = [[row.question for row in read_qa_rows(folder, "fiqa", "test")] for folder in (out, tmp_path / "other")]
    assert len(questions[0]) == len(questions[1]) == 2 and questions[0] != questions[1]


def test_the_released_layout_keeps_splits_and_candidates(tmp_path: Path) -> None:
    write_released(tmp_path / "raw", "law")
    write_released(tmp_path / "raw", "money")
    assert run(tmp_path / "raw", tmp_path / "out") == 0
    manifest = read_manifest(tmp_path / "out")
    assert list(manifest["clients"]) == ["law", "money"] and manifest["record"]["layout"] == "released"
    assert manifest["clients"]["law"]["splits"]["test"]["rows"] == [2, 2, 2, 2]
    assert manifest["clients"]["law"]["splits"]["train"]["pairs"] == [1, 5, 5, 5]
    assert manifest["record"]["options"]["sources"].keys() >= {"law/test.rank", "money/train.json"}
    assert read_pool(tmp_path / "out") == []


def test_table_1_is_of_the_authors_files_before_training_changes_them(tmp_path: Path) -> None:
    """By hand: 5 + 4 + 4 questions, one of them without a relevant answer; 6 + 8 + 8 pairs, 12 of them relevant."""
    write_released(tmp_path / "raw", "law")
    assert run(tmp_path / "raw", tmp_path / "out") == 0
    facts = read_manifest(tmp_path / "out")["record"][FACTS]["law"]
    assert (facts["questions"], facts["relevant %"]) == (13, pytest.approx(100 * 12 / 22, abs=1e-4))
    assert (facts["answers"], facts["words per question"]) == (14, round((13 * 3 + 8 - 1) / 13, 4))


def test_table_1_counts_questions_that_training_leaves_out_and_all_given_negatives(out: Path) -> None:
    """PrivacyQA, by hand: 12 questions, two of them without a relevant segment; 20 of 120 labelled pairs relevant."""
    facts = read_manifest(out)["record"][FACTS]
    assert facts["privacyqa"]["questions"] == 12
    assert facts["privacyqa"]["relevant %"] == pytest.approx(100 * 20 / 120, abs=1e-4)
    assert facts["pubmedqa"]["relevant %"] == pytest.approx(100 / 6, abs=1e-4)  # none are given: five by BM25


def test_collections_and_clients_with_a_train_json_are_both_read(raw: Path, out: Path, tmp_path: Path) -> None:
    both = tmp_path / "raw"
    shutil.copytree(raw, both)
    write_released(both, "law")
    assert run(both, tmp_path / "out") == 0
    manifest = read_manifest(tmp_path / "out")
    assert list(manifest["clients"]) == [*CLIENTS, "law"]
    assert manifest["record"]["layout"] == "collections and released"
    for client in CLIENTS:  # nothing of theirs depends on who else is there
        assert manifest["clients"][client] == read_manifest(out)["clients"][client]
    assert read_pool(tmp_path / "out") == read_pool(out)
    for client in ("privacyqa", "medquad"):
        shutil.rmtree(both / client)
    assert run(both, tmp_path / "some") == 0
    assert list(read_manifest(tmp_path / "some")["clients"]) == ["pubmedqa", "fiqa", "insuranceqa", "law"]
    assert read_pool(tmp_path / "some") == ["where to buy a public share?"]


def test_a_client_without_its_training_file_is_an_error_and_other_folders_are_counted(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = tmp_path / "raw"
    shutil.copytree(raw, both)
    (both / "old stuff").mkdir()
    write_released(both, "law")
    (both / "law" / "train.json").rename(tmp_path / "train.json")
    assert run(both, tmp_path / "out") == 3
    assert "law/train.json is missing" in capsys.readouterr().err
    (tmp_path / "train.json").rename(both / "law" / "train.json")
    assert run(both, tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert (
        "left out of raw: 1 of 7 folders (neither one of the five collections nor with train.json: old stuff)" in shown
    )


def test_what_is_left_out_is_printed_with_counts(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    law, entries = tmp_path / "raw", json.loads((raw / "pubmedqa" / "ori_pqal.json").read_text())
    shutil.copytree(raw, law)
    write_released(law, "law")
    (law / "law" / "train.json").open("a").write(
        '{"question": "What is lamp?", "answer": "A lamp is used", "label": 0}'
    )
    entries["7"] = {**entries["100"], "LONG_ANSWER": "Another answer."}
    entries["8"] = entries["101"]
    put(law / "pubmedqa" / "ori_pqal.json", json.dumps(entries))
    for _ in range(2):  # the second time the folder is there already
        assert run(law, tmp_path / "out") == 0
        shown = capsys.readouterr().out.splitlines()
        for line in (
            "left out of pubmedqa: 2 of 14 questions (merged with one of the same text)",
            "left out of pubmedqa: 1 of 14 answers (merged with one of the same text)",
            "left out of insuranceqa: 12 of 24 questions (they have no positive answer)",
            "left out of medquad: 4 of 16 pairs (they have no answer)",
            "left out of law, train: 1 of 5 questions (they have no positive answer)",
            "left out of law, train: 1 of 7 pairs (merged with one of the same texts)",
        ):
            assert line in shown
        assert not [line for line in shown if ": 0 of" in line]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--shares", "70", "20", "20"], 2, "shares are 70 20 20; expected three positive numbers that sum to 100"),
        (["--shares", "98", "1", "1"], 3, "too few for shares"),
        (["--negatives", "0"], 2, "negatives is 0; expected at least 1"),
        (["--vocab-size", "10"], 2, "choose a larger size"),
    ],
)
def test_options_that_cannot_be_are_one_line_and_leave_nothing(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, message: str
) -> None:
    assert run(raw, tmp_path / "out", *more) == code
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_without_the_collections_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "raw" / "fiqa").mkdir(parents=True)
    assert run(tmp_path / "raw", tmp_path / "out") == 3
    assert "has no privacyqa, pubmedqa, insuranceqa, medquad; --raw must be" in capsys.readouterr().err


def test_a_client_with_a_single_answer_cannot_have_negatives(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_collections(tmp_path / "raw")
    entries = {str(i): {"QUESTION": topic, "LONG_ANSWER": "same"} for i, topic in enumerate(TOPICS)}
    put(tmp_path / "raw" / "pubmedqa" / "ori_pqal.json", json.dumps(entries))
    assert run(tmp_path / "raw", tmp_path / "out") == 3
    assert "client pubmedqa, question" in capsys.readouterr().err


def test_shares_are_of_questions_and_order_stays() -> None:
    questions = [Question(str(i), f"q{i}", ("a",), ()) for i in range(20)]
    splits = split_questions(questions, (70, 10, 20), seed=0, client="x")
    assert {split: len(part) for split, part in splits.items()} == {"train": 14, "dev": 2, "test": 4}
    assert all(part == sorted(part, key=lambda question: int(question.qid)) for part in splits.values())
    assert splits != split_questions(questions, (70, 10, 20), seed=0, client="y")
    with pytest.raises(ConfigError, match="given_negatives is 0"):
        Sampling(given_negatives=0)


GOOD = QARow("question ?", ["right", "wrong"], [1, 0], ["a", "b"])
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no answers": ({"answers": [], "labels": [], "docids": []}, "it has no answers; a question needs at least one"),
    "lengths": ({"labels": [1]}, "2 answers, 1 labels, 2 docids"),
    "an answer that is a number": ({"answers": ["right", 3]}, "an answer or docid is not a string"),
    "a label that is no label": ({"labels": [1, 2]}, "a label is neither 0 nor 1"),
    "a label that is a boolean": ({"labels": [True, False]}, "a label is neither 0 nor 1"),
    "a docid twice": ({"docids": ["a", "a"]}, "a docid occurs twice"),
    "no positive in training": ({"labels": [0, 0]}, "it has no positive answer"),
    "no negative in training": ({"labels": [1, 1]}, "it has no negative answer"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_neither_written_nor_read(tmp_path: Path, case: str) -> None:
    change, message = BAD[case]
    bad = replace(GOOD, **change)
    with pytest.raises(DataError, match=f"client c, train question 2: {message}"):
        write_qa(tmp_path / "a", "x", {"c": {"train": [GOOD, bad]}}, pool=[], vocab_size=150, record={})
    root = tmp_path / "b"
    write_qa(root, "x", {"c": {"train": [GOOD, GOOD]}}, pool=[], vocab_size=150, record={}, min_frequency=1)
    lines = [json.dumps(row.__dict__) + "\n" for row in (GOOD, bad)]
    put(root / "c" / "train.jsonl", "".join(lines))
    seal(root)
    with pytest.raises(DataError, match=f"client c, train question 2: {message}"):
        read_qa_rows(root, "c", "train")


def test_a_damaged_pool_or_word_list_is_an_error(tmp_path: Path) -> None:
    put(tmp_path / "public" / "questions.jsonl", '{"question": "q"}\n{}\n')
    with pytest.raises(DataError, match="questions.jsonl:2: expected an object with `question`"):
        read_pool(tmp_path)
    with pytest.raises(DataError, match="words.txt cannot be read"):
        read_words(tmp_path)
