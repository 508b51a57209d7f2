"""Examples that question answering trains on and is evaluated with."""

from __future__ import annotations

from typing import NamedTuple

Ids = list[int]
"""Of a text's words or pieces."""


class Question(NamedTuple):
    """A question of an evaluation."""

    question: Ids
    """its tokens"""
    answers: list[Ids]
    """the candidates"""
    labels: list[int]
    """1: the candidate is relevant"""
    docids: list[str]
    """the candidates' names, by which ties are settled"""


class Triple(NamedTuple):
    """A training example of the hinge loss."""

    question: Ids
    """its tokens"""
    positive: Ids
    """a relevant answer"""
    negatives: list[Ids]
    """irrelevant ones, of which one is taken"""


class Labelled(NamedTuple):
    """A training example of the cross entropy."""

    question: Ids
    """its tokens"""
    answer: Ids
    """a candidate's tokens"""
    label: int
    """1: the answer is relevant"""


def labelled(question: Question) -> list[Labelled]:
    """Every answer of a question as a row of its own."""
    return [Labelled(question.question, a, y) for a, y in zip(question.answers, question.labels, strict=True)]


def triples_of(question: Question, *, sampled: bool) -> list[Triple]:
    """Every pair of a relevant and an irrelevant answer; if `sampled`, every relevant one with all irrelevant ones."""
    by_label: dict[int, list[Ids]] = {0: [], 1: []}
    for answer, label in zip(question.answers, question.labels, strict=True):
        by_label[label].append(answer)
    if sampled:
        return [Triple(question.question, positive, by_label[0]) for positive in by_label[1]]
    return [Triple(question.question, positive, [no]) for positive in by_label[1] for no in by_label[0]]
