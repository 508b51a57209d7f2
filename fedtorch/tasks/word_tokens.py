"""Words and the tokens that stand for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedtorch.metrics.spans import spans_of


@dataclass(frozen=True)
class Example:
    """A tokenised text and its words."""

    ids: list[int]
    """tokens; of a long text those of its first window"""
    pieces: list[int]
    """place in `ids`, and all of `more` after it, of each word's first piece; the one of the word before where they
    share it; −1: cut away"""
    tags: list[int]
    """number of each word's tag"""
    more: Sequence[list[int]] = ()
    """further windows, where a long text is read in several"""

    @property
    def windows(self) -> list[list[int]]:
        """All of them."""
        return [self.ids, *self.more]

    @cached_property
    def labelled(self) -> list[tuple[int, int]]:
        """(place in `ids`, tag) of words with a piece of their own."""
        before = [-1, *self.pieces]
        rows = zip(before, self.pieces, self.tags, strict=False)
        return [(piece, tag) for last, piece, tag in rows if piece >= 0 and piece != last]


def first_pieces(words: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The first token of each word, −1 of one that has none; both ascend and are (start, end) in characters.

    Tokens that a tokenizer adds have (0, 0). A token may hold several words, as `).` and words of Chinese do.
    """
    found, place = [], 0
    for start, end in words:
        while place < len(offsets) and offsets[place][1] <= start:
            place += 1
        found.append(place if place < len(offsets) and offsets[place][0] < end else -1)
    return found


def tags_of_words(pieces: Sequence[int], tags: Sequence[int]) -> list[int]:
    """Tags of words from those of tokens; in a token that it shares a word goes on with the span of the word before."""
    found: list[int] = []
    for i, piece in enumerate(pieces):
        tag = tags[piece] if piece >= 0 else 0
        if piece >= 0 and i and piece == pieces[i - 1]:
            tag += tag % 2  # B- has an odd number, and I- of the same kind the next
        found.append(tag)
    return found


def spans_in_text(row: Mapping[str, Any], tags: Sequence[str]) -> list[dict[str, Any]]:
    """start, end (not included) and label of each span in the text that a row's words were taken from."""
    return [
        {"start": row["starts"][first], "end": row["ends"][after - 1], "label": kind}
        for kind, first, after in spans_of(tags)
    ]
