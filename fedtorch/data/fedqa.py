"""Question answering clients as read: questions, their answers' ids, and the texts of all answers of one client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedtorch.core.errors import DataError

# in the order of FedMatch's tables; PubMedQA stands in for BioASQ, which needs a registration
CLIENTS = ("privacyqa", "pubmedqa", "fiqa", "insuranceqa", "medquad")


def clean(text: str) -> str:
    """Lower case, and one blank for every run of white space (FedMatch, 4.1); what all texts go through."""
    return " ".join(text.lower().split())


class Question(NamedTuple):
    """A question and the ids of its answers."""

    qid: str
    """unique in its collection"""
    text: str
    """after `clean`"""
    positives: tuple[str, ...]
    """documents that answer it"""
    negatives: tuple[str, ...]
    """documents that the publisher labelled as no answers"""


@dataclass(frozen=True)
class Collection:
    """One client."""

    documents: dict[str, str]
    """document id -> text of an answer, in the order of the files"""
    questions: list[Question]
    """in the order of the files"""
    notes: dict[str, int] = field(default_factory=dict)
    """what a reader left out, by reason"""
    left_out: list[tuple[int, int, str]] = field(default_factory=list)
    """the same and what was merged: how many, of how many, of what"""


class Builder:
    """Collects labelled pairs into a Collection; texts that are equal after `clean` are one question, one document.

    A pair that is labelled both ways counts as a positive one.
    """

    def __init__(self) -> None:
        self._documents: dict[str, str] = {}  # text -> id
        self._questions: dict[str, tuple[str, dict[str, bool]]] = {}  # text -> id, (document id -> relevant)
        self._ids: set[str] = set()
        self._added: Counter[str] = Counter()
        self._merged: Counter[str] = Counter()

    def document(self, text: str, docid: str | None = None, *, where: str = "") -> str:
        """The id of this answer: the one given, or a number in the order of arrival.

        Raises:
            DataError: the text is blank, or the id belongs to another text; `where` is the place to name.
        """
        text = clean(text)
        if not text:
            raise DataError(f"{where}: the answer is empty; expected text")
        self._count("answers", self._documents.get(text), docid)
        if text not in self._documents:
            docid = docid or f"{len(self._documents):06d}"
            if docid in self._ids:
                raise DataError(f"{where}: the document id {docid!r} stands for two different texts; expected one")
            self._ids.add(docid)
            self._documents[text] = docid
        return self._documents[text]

    def question(self, text: str, qid: str | None = None, *, where: str = "") -> str:
        """Adds a question, perhaps without any answer, and returns its cleaned text.

        Raises:
            DataError: the text is blank.
        """
        text = clean(text)
        if not text:
            raise DataError(f"{where}: the question is empty; expected text")
        self._count("questions", self._questions[text][0] if text in self._questions else None, qid)
        self._questions.setdefault(text, (qid or f"{len(self._questions):06d}", {}))
        return text

    def pair(self, question: str, docid: str, relevant: bool) -> None:
        """Labels a document for a question; both were added before."""
        labels = self._questions[question][1]
        self._added["labelled pairs"] += 1
        self._merged["labelled pairs"] += docid in labels
        labels[docid] = labels.get(docid, False) or relevant

    def build(self, notes: dict[str, int] | None = None, left_out: Sequence[tuple[int, int, str]] = ()) -> Collection:
        """The collection of all that was added; notes and left_out: what the reader did not add."""
        questions = [
            Question(
                qid,
                text,
                tuple(docid for docid, relevant in labels.items() if relevant),
                tuple(docid for docid, relevant in labels.items() if not relevant),
            )
            for text, (qid, labels) in self._questions.items()
        ]
        documents = {docid: text for text, docid in self._documents.items()}
        merged = [
            (self._merged[kind], self._added[kind], f"{kind} (merged with one of the same text)")
            for kind in ("questions", "answers", "labelled pairs")
            if self._merged[kind]
        ]
        return Collection(documents, questions, dict(notes or {}), [*left_out, *merged])

    def _count(self, kind: str, known: str | None, given: str | None) -> None:
        """Count what has an id of its own: without one, a text is repeated in every pair it is part of."""
        if given:
            self._added[kind] += 1
            self._merged[kind] += known not in (None, given)
