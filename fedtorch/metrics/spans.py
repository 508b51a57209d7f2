"""Spans of a sequence of IOB tags, counted by kind so that precision, recall and F1 can be pooled over clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedtorch.metrics.confusion import Counts

OUTSIDE = "O"
Span = tuple[str, int, int]
"""(kind, first word, word after the last)"""


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The spans of one sequence of O, B-KIND and I-KIND.

    An I- that continues no span of its kind begins one, as in the seqeval library without a scheme: a model may tag so.
    """
    found: list[Span] = []
    kind, start = "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, now = tag.partition("-")
        if kind and (prefix != "I" or now != kind):
            found.append((kind, start, place))
            kind = ""
        if not kind and prefix != OUTSIDE:
            kind, start = now, place
    return found


def count_spans(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], kinds: Sequence[str]
) -> list[Counts]:
    """Counts of each of `kinds` over pairs of sequences; a span is hit where its kind and both ends are right."""
    table = {kind: [0, 0, 0] for kind in kinds}
    for gold, found in zip(true, predicted, strict=True):
        golds, founds = set(spans_of(gold)), set(spans_of(found))
        for column, spans in enumerate((golds & founds, founds, golds)):
            for kind, _, _ in spans:
                table[kind][column] += 1
    return [Counts(*row) for row in table.values()]
