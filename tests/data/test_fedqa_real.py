"""The five public collections as they are: counts, and what `prepare fedqa` makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.data.client_facts import FACTS
from fedtorch.data.cover_queries import cover_triples
from fedtorch.data.fedqa import Collection
from fedtorch.data.fedqa_readers import READERS, public_questions, read_table
from fedtorch.data.folder import read_manifest
from fedtorch.data.prepare_fedqa import prepare_fedqa
from fedtorch.data.qa_folder import read_pool, read_qa_rows
from fedtorch.metrics.ranking import reciprocal_rank

pytestmark = pytest.mark.data

# client: questions, those with a positive, answers, positives, given negatives, mean words of question and answer.
# Cleaning merges two questions of InsuranceQA (4533 raw) and two answers of MedQuAD (2167 raw).
COUNTS = {
    "privacyqa": (389, 358, 1025, 5449, 5474, 8.57, 26.7),
    "pubmedqa": (1000, 1000, 1000, 1000, 0, 12.91, 39.7),
    "fiqa": (333, 333, 865, 865, 0, 11.1, 183),
    "insuranceqa": (4531, 4531, 8690, 5040, 0, 7.20, 94.8),
    "medquad": (1375, 1375, 2165, 2183, 0, 8.76, 248.5),
}


@pytest.fixture(scope="module")
def raw(shared_data: Path) -> Path:
    return shared_data / "fedqa"


@pytest.mark.parametrize("client", COUNTS)
def test_counts_are_those_of_the_published_files(raw: Path, client: str) -> None:
    found: Collection = READERS[client](raw / client)
    questions, documents = found.questions, found.documents
    *sizes, question_words, answer_words = COUNTS[client]
    assert [
        len(questions),
        sum(bool(question.positives) for question in questions),
        len(documents),
        sum(len(question.positives) for question in questions),
        sum(len(question.negatives) for question in questions),
    ] == sizes
    assert sum(len(q.text.split()) for q in questions) / len(questions) == pytest.approx(question_words, rel=5e-3)
    assert sum(len(text.split()) for text in documents.values()) / len(documents) == pytest.approx(
        answer_words, rel=5e-3
    )


def test_insuranceqas_positives_and_left_out_questions(raw: Path) -> None:
    found = READERS["insuranceqa"](raw / "insuranceqa")
    assert len({docid for question in found.questions for docid in question.positives}) == 5026
    assert found.notes == {"questions without a positive answer": 2205}


def test_the_public_pool_and_the_tables_it_comes_from(raw: Path) -> None:
    assert len(public_questions(raw)) == 6648 + 1350
    sizes = [sum(1 for _ in read_table(p, ("Query",), delimiter="\t")) for p in sorted(raw.glob("privacyqa/*.csv"))]
    assert sizes == [400, 1350]
    assert not any('"' in text or "\\" in text for text in public_questions(raw)[6648:])
    links = read_table(raw / "fiqa" / "FiQA_train_question_doc_final.tsv", ("qid", "docid"), delimiter="\t")
    assert sum(1 for _ in links) == 17110


@pytest.mark.slow
def test_prepare_fedqa_on_the_published_files(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = prepare_fedqa(raw, out)
    sizes = {name: [s["examples"] for s in entry["splits"].values()] for name, entry in manifest["clients"].items()}
    assert sizes == {
        "privacyqa": [249, 39, 78],
        "pubmedqa": [700, 100, 200],
        "fiqa": [233, 33, 67],
        "insuranceqa": [3172, 453, 906],
        "medquad": [962, 138, 275],
    }
    assert manifest["record"]["notes"]["privacyqa"]["train questions without a positive answer"] == 23
    assert manifest == read_manifest(out) and manifest["record"]["vocabulary"] == 8000
    # questions, answers, words per question and answer, positives among all candidates, as the data's description has
    # them of the raw files; its 95.2 words of InsuranceQA are of the 5026 answers that are positive
    described = {
        "privacyqa": (389, 1025, 8.57, 26.7, 49.9),
        "pubmedqa": (1000, 1000, 12.91, 39.7, 16.67),
        "fiqa": (333, 865, 11.1, 183, 34.2),
        "insuranceqa": (4531, 8690, 7.20, 94.8, 18.2),
        "medquad": (1375, 2165, 8.75, 248, 24.1),
    }
    facts = manifest["record"][FACTS]
    assert {name: list(values.values()) for name, values in facts.items()} == {
        name: pytest.approx(values, rel=3e-3) for name, values in described.items()
    }
    page = (Path(__file__).parents[2] / "docs" / "fedmatch.md").read_text()
    for name, found in facts.items():
        assert any(f" {found['questions']} " in line and name in line.lower() for line in page.splitlines()), name
    for client, expected in (("pubmedqa", 16.67), ("fiqa", 34.2), ("insuranceqa", 18.2), ("medquad", 24.1)):
        rows = [row for split in ("train", "dev", "test") for row in read_qa_rows(out, client, split)]
        share = sum(row.positives for row in rows) / sum(len(row.labels) for row in rows)
        assert 100 * share == pytest.approx(expected, abs=0.1), client
        tied = [reciprocal_rank([0.0] * len(row.labels), row.labels, row.docids) or 0 for row in rows]
        assert sum(tied) / len(tied) < 0.7, client  # docids, which settle ties, do not give the answer away
    rows = read_qa_rows(out, "fiqa", "train")
    answers = [answer for row in rows for answer in row.answers]
    covers = cover_triples([row.question for row in rows], read_pool(out), answers, seed=0)
    assert len(covers) == 2 * len(rows)
