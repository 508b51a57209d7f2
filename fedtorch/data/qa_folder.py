"""Prepared question answering data: rows of candidates, a vocabulary, a word list, and a public pool of questions.

<client>/{train,dev,test}.jsonl   {"question", "answers", "labels", "docids"} a line: a question and its candidates
tokenizer/                        BERT's uncased WordPiece, trained on the training splits
words.txt                         words of the training splits that occur at least twice, most frequent first
public/questions.jsonl            {"question"} a line; nobody's private data
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.data.fedqa import clean
from fedtorch.data.folder import client_file, read_rows, write_client, write_manifest
from fedtorch.data.json_file import read_bytes
from fedtorch.data.manifest import PREPARE, split_facts
from fedtorch.data.paths import inside
from fedtorch.text.wordpiece_training import train_wordpiece
from fedtorch.text.wordpieces import load_wordpieces

FIELDS: dict[str, type] = {"question": str, "answers": list, "labels": list, "docids": list}

POOL = Path("public", "questions.jsonl")
"""The public questions, in the prepared folder."""


@dataclass(frozen=True)
class QARow:
    """One question with its candidates; the three lists run in step."""

    question: str
    """its text, cleaned"""
    answers: list[str]
    """the candidates' texts"""
    labels: list[int]
    """1 relevant, 0 not"""
    docids: list[str]
    """the candidates' names, different within a row"""

    @property
    def positives(self) -> int:
        """How many candidates are relevant."""
        return sum(self.labels)

    @property
    def pairs(self) -> int:
        """How many (positive, negative) pairs the candidates form."""
        return self.positives * (len(self.labels) - self.positives)

    def with_positives(self, most: int) -> QARow:
        """The row with its first `most` relevant candidates and all irrelevant ones, in their order."""
        seen = list(accumulate(self.labels))
        kept = [i for i, label in enumerate(self.labels) if not label or seen[i] <= most]
        answers, labels, docids = ([column[i] for i in kept] for column in (self.answers, self.labels, self.docids))
        return QARow(self.question, answers, labels, docids)  # type: ignore[arg-type]


def write_qa(
    folder: Path,
    name: str,
    clients: Mapping[str, Mapping[str, Sequence[QARow]]],
    *,
    pool: Iterable[str],
    vocab_size: int,
    record: Mapping[str, Any],
    min_frequency: int = 2,
) -> None:
    """Writes everything of a prepared folder, the manifest last.

    Each split's entry in the manifest has, beside what `write_client` says, three lists in row order: `pairs`, the
    number of (positive, negative) pairs, `rows`, that of candidates, and `positives`, that of relevant ones.

    Args:
        clients: client -> split -> rows.
        pool: public questions; cleaned here, without repetitions, and without those that some client owns.

    Raises:
        DataError: a row has no candidates, or a training row no positive or no negative one.
        ConfigError: no vocabulary of that size can be trained.
    """
    entries, texts = {}, []
    for client, splits in clients.items():
        for split, rows in splits.items():
            for number, row in enumerate(rows, start=1):
                _check_row(row, f"client {client}, {split} question {number}", training=split == "train")
        plain = {split: [asdict(row) for row in rows] for split, rows in splits.items()}
        entries[client] = write_client(folder, client, plain, facts={})
        for split, rows in splits.items():
            entries[client]["splits"][split] |= {
                "pairs": [row.pairs for row in rows],
                "rows": [len(row.labels) for row in rows],
                "positives": [row.positives for row in rows],
            }
        texts += list(_distinct_texts(splits.get("train", [])))
    train_wordpiece(texts, folder / "tokenizer", size=vocab_size, min_frequency=min_frequency)
    _write_words(texts, folder / "words.txt")
    owned = {row.question for splits in clients.values() for rows in splits.values() for row in rows}
    public = [text for text in dict.fromkeys(map(clean, pool)) if text and text not in owned]
    _write_pool(public, folder / POOL)
    facts = {"vocabulary": len(load_wordpieces(folder / "tokenizer")), "public_questions": len(public)}
    write_manifest(folder, name, clients=entries, record={**record, **facts})


def read_qa_rows(root: Path, client: str, split: str, **options: Any) -> list[QARow]:
    """The rows of one split, checked; `options` go to `read_rows`.

    Raises:
        DataError: as in `read_rows`, or a row has no candidates, lists of different length, an entry of the wrong type,
            a docid twice, or in training no positive or no negative; the manifest counts other candidates.
    """
    rows = []
    path = client_file(root, client, f"{split}.jsonl")
    for number, raw in enumerate(read_rows(root, client, split, fields=FIELDS, **options), start=1):
        row = QARow(*(raw[name] for name in FIELDS))
        _check_row(row, f"{path}: client {client}, {split} question {number}", training=split == "train")
        rows.append(row)
    facts = split_facts(root, client, split)
    found = {"rows": [len(row.labels) for row in rows], "positives": [row.positives for row in rows]}
    if wrong := [name for name, counts in found.items() if facts.get(name, counts) != counts]:
        raise DataError(f"{root}: the manifest counts other {wrong[0]} of client {client}, {split}; {PREPARE} again")
    return rows


def check_counts(root: Path, clients: Mapping[str, Mapping[str, Any]]) -> None:
    """Whether every split of a manifest's clients has the lists that say how many candidates its questions have.

    Raises:
        DataError: one lacks a list, or it is not as long as the split.
    """
    for client, entry in clients.items():
        for split, facts in entry["splits"].items():
            for name in ("rows", "positives"):
                if len(facts.get(name, ())) != facts["examples"]:
                    raise DataError(
                        f"{Path(root) / 'manifest.json'}: {name} of client {client}, {split} should be a list of a "
                        f"number for each of {facts['examples']} questions; {PREPARE} again"
                    )


def read_pool(root: Path) -> list[str]:
    """The public questions.

    Raises:
        DataError: the file is missing or a line is not as `write_qa` writes it.
    """
    questions = []
    for number, line in enumerate(_read(root, *POOL.parts).split("\n")[:-1], start=1):
        try:
            questions.append(str(json.loads(line)["question"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            path = Path(root) / POOL
            raise DataError(f"{path}:{number}: expected an object with `question`; prepare again") from None
    return questions


def _read(root: Path, *parts: str) -> str:
    path = inside(root, *parts)
    try:
        return read_bytes(path, "prepare the data again").decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}); prepare the data again") from None


def _check_row(row: QARow, where: str, *, training: bool) -> None:
    lengths = {len(row.answers), len(row.labels), len(row.docids)}
    problem = None
    if not row.answers:
        problem = "it has no answers; a question needs at least one candidate"
    elif len(lengths) > 1:
        problem = (
            f"{len(row.answers)} answers, {len(row.labels)} labels, {len(row.docids)} docids; expected equal numbers"
        )
    elif not all(type(value) is str for value in (*row.answers, *row.docids)):
        problem = "an answer or docid is not a string"
    elif not all(type(label) is int and label in (0, 1) for label in row.labels):
        problem = "a label is neither 0 nor 1"
    elif len(set(row.docids)) < len(row.docids):
        problem = "a docid occurs twice; expected different ones"
    elif training and not row.positives:
        problem = "it has no positive answer; leave it out of training"
    elif training and row.positives == len(row.labels):
        problem = "it has no negative answer; add some or leave it out of training"
    if problem:
        raise DataError(f"{where}: {problem}")


def _distinct_texts(rows: Sequence[QARow]) -> Iterator[str]:
    """Questions and candidates of one client, each text once, in order."""
    yield from dict.fromkeys(text for row in rows for text in (row.question, *row.answers))


def _write_words(texts: Iterable[str], path: Path) -> None:
    counts = Counter(word for text in texts for word in text.lower().split())
    kept = sorted((word for word, count in counts.items() if count >= 2), key=lambda word: (-counts[word], word))
    path.write_text("".join(f"{word}\n" for word in kept), encoding="utf-8")


def _write_pool(questions: Sequence[str], path: Path) -> None:
    path.parent.mkdir()
    lines = (json.dumps({"question": question}, ensure_ascii=False) + "\n" for question in questions)
    path.write_text("".join(lines), encoding="utf-8")
