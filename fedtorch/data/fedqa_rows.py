"""From a client's collection to rows of candidates: the split by question, and BM25 negatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.seeds import generator_for
from fedtorch.data.bm25 import BM25
from fedtorch.data.fedqa import Collection, Question
from fedtorch.data.qa_folder import QARow

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Sampling:
    """How candidates are chosen."""

    negatives: int = 5
    """BM25 negatives of a question that has none from the publisher (FedMatch, 4.1)"""
    given_negatives: int = 5
    """at most so many of the publisher's negatives in training; dev and test keep all"""
    seed: int = 0
    """of the split by question and of all draws"""

    def __post_init__(self) -> None:
        for name in ("negatives", "given_negatives"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")


def split_questions(
    questions: Sequence[Question], shares: tuple[int, int, int], *, seed: int, client: str
) -> dict[str, list[Question]]:
    """Train, dev and test by question, drawn with the seed; within a split the order stays.

    Args:
        shares: percent of train, dev and test. Dev and test are rounded to whole questions, train gets the rest.

    Raises:
        ConfigError: the shares are not three positive numbers that add up to 100.
        DataError: a split would be empty.
    """
    if len(shares) != 3 or min(shares) < 1 or sum(shares) != 100:
        raise ConfigError(f"shares are {' '.join(map(str, shares))}; expected three positive numbers that sum to 100")
    total = len(questions)
    dev, test = (round(total * share / 100) for share in shares[1:])
    if min(dev, test, total - dev - test) < 1:
        raise DataError(f"client {client} has {total} questions, too few for shares of {shares}; leave it out")
    order = torch.randperm(total, generator=generator_for(seed, "question split", client)).tolist()
    parts = {"dev": order[:dev], "test": order[dev : dev + test], "train": order[dev + test :]}
    return {split: [questions[i] for i in sorted(parts[split])] for split in SPLITS}


def candidate_rows(
    client: str, collection: Collection, splits: Mapping[str, Sequence[Question]], sampling: Sampling
) -> tuple[dict[str, list[QARow]], dict[str, int]]:
    """The rows of every split, and counts of what was special.

    Negatives are the publisher's, or else the best BM25 answers of this client (one index over all its answers) that
    are not the question's own. A question without a positive answer is left out of training and stays elsewhere. In
    training the positives come first, elsewhere candidates are in the order of their docids, which says nothing
    about relevance.

    Raises:
        DataError: a question has no other answer that could be its negative.
    """
    docids = list(collection.documents)
    index = BM25(list(collection.documents.values()))
    rows: dict[str, list[QARow]] = {split: [] for split in splits}
    notes: Counter[str] = Counter()
    for split, questions in splits.items():
        training = split == "train"
        for question in questions:
            if not question.positives:
                notes[f"{split} questions without a positive answer"] += 1
                if training:
                    continue
            negatives = list(question.negatives)
            if negatives and training:
                generator = generator_for(sampling.seed, "given negatives", client, question.qid)
                order = torch.randperm(len(negatives), generator=generator)[: sampling.given_negatives]
                negatives = [negatives[i] for i in sorted(order.tolist())]
            elif not negatives:
                negatives = [docids[i] for i in _drawn(client, index, collection, question, sampling)]
                notes[f"{split} questions with BM25 negatives"] += 1
            if not negatives:
                raise DataError(
                    f"client {client}, question {question.qid}: no other answer can be a negative; add answers"
                )
            rows[split].append(_row(collection, question, negatives, training=training))
    return rows, dict(notes)


def _drawn(client: str, index: BM25, collection: Collection, question: Question, sampling: Sampling) -> list[int]:
    return index.negatives(
        question.text,
        [collection.documents[docid] for docid in question.positives],
        count=sampling.negatives,
        generator=generator_for(sampling.seed, "negatives", client, question.qid),
    )


def _row(collection: Collection, question: Question, negatives: Sequence[str], *, training: bool) -> QARow:
    labels = dict.fromkeys(question.positives, 1) | dict.fromkeys(negatives, 0)
    order = list(labels) if training else sorted(labels)
    return QARow(
        question.text, [collection.documents[docid] for docid in order], [labels[docid] for docid in order], order
    )
