"""Form of a row whose words are tagged: words with their tags, or a text with the spans in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedtorch.data.own.text_form import list_in_text
from fedtorch.metrics.spans import OUTSIDE

Annotation = Literal["words", "spans"]
Scheme = Literal["iob2", "iob1", "bioes"]
SPAN_KINDS = ("label", "type", "entity", "entity_group", "tag")
"""What the kind of a span may be called, the first of them counts."""
_ASCII = re.compile(r"[A-Za-z]+|[0-9]+|\S")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts that put no space between words, such as Thai and Chinese: each is taken for a word."""


@dataclass(frozen=True)
class TaggedWords:
    """Words with tags, either given so or found between the spans of a text."""

    annotation: Annotation
    """how the source has them: a list of words with a list of tags, or a text with spans of characters"""
    known: tuple[str, ...]
    """kinds of spans that are declared; empty: any"""
    optional: Sequence[str] = ()
    """roles of columns that are used where the source has them"""
    scheme: Scheme = "iob2"
    """how the source's tags say where a span begins and ends"""

    @property
    def required(self) -> Sequence[str]:
        """Roles of the columns."""
        return ("tokens", "tags") if self.annotation == "words" else ("text", "spans")

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """text; starts and ends, the characters of each word in it; tags, an IOB2 tag for each."""
        if self.annotation == "spans":
            return self._of_spans(values["text"], values["spans"])
        words, tags = list_in_text(values["tokens"]), list_in_text(values["tags"])
        for name, value in (("tokens", words), ("tags", tags)):
            if not isinstance(value, list):
                raise ValueError(f"`{name}` is a {type(value).__name__}, expected a list of strings")
        if not words:
            raise ValueError("`tokens` is empty, expected at least one word")
        if len(words) != len(tags):
            raise ValueError(f"{len(words)} tokens but {len(tags)} tags, expected a tag for each token")
        for number, word in enumerate(words, start=1):
            if not isinstance(word, str) or not word.strip():
                what = "empty" if isinstance(word, str) else f"a {type(word).__name__}"
                raise ValueError(f"token {number} is {what}, expected a word")
        tags = as_iob2(tags, self.scheme)
        self._check_tags(tags)
        starts, place = [], 0
        for word in words:
            starts.append(place)
            place += len(word) + 1
        ends = [start + len(word) for start, word in zip(starts, words, strict=True)]
        return {"text": " ".join(words), "starts": starts, "ends": ends, "tags": tags}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """The text."""
        return [row["text"]]

    def _check_tags(self, tags: Sequence[Any]) -> None:
        before = OUTSIDE
        for number, tag in enumerate(tags, start=1):
            if not isinstance(tag, str):
                raise ValueError(f"tag {number} is a {type(tag).__name__}, expected a string such as O or B-PER")
            prefix, dash, kind = tag.partition("-")
            if tag != OUTSIDE and (prefix not in ("B", "I") or not kind):
                raise ValueError(
                    f"tag {number} is {tag[:40]!r}, expected O, B-KIND or I-KIND (IOB2), with task.scheme: "
                    "bioes also E- and S-"
                )
            if prefix == "I" and before not in (f"B-{kind}", tag):
                raise ValueError(
                    f"tag {number} is {tag[:40]!r} after {before[:40]!r}; in IOB2 a span begins with B-, also where no "
                    "other one touches it; set task.scheme to iob1 if spans that touch none begin with I-"
                )
            if kind:
                self._check_kind(kind)
            before = tag

    def _check_kind(self, kind: str) -> None:
        if self.known and kind not in self.known:
            raise ValueError(f"the label {kind[:40]!r} is none of task.data.labels: {', '.join(self.known)[:200]}")

    def _of_spans(self, text: Any, spans: Any) -> dict[str, Any]:
        if not isinstance(text, str):
            raise ValueError(f"the text is a {type(text).__name__}, expected a string")
        words = list(words_of(text))
        if not words:
            raise ValueError("the text has no word")
        tags, last = [OUTSIDE] * len(words), 0
        for number, start, end, kind in self._spans(spans, len(text)):
            inside = [i for i, (begin, stop) in enumerate(words) if begin < end and stop > start]
            if start < last:
                raise ValueError(f"span {number} (characters {start} to {end}) overlaps another one; IOB2 has no way")
            if not inside:
                raise ValueError(f"span {number} (characters {start} to {end}) has no word in it")
            if words[inside[0]][0] < start or words[inside[-1]][1] > end:
                raise ValueError(
                    f"span {number} (characters {start} to {end}) begins or ends within a word; move it to the word's "
                    "border (offsets count characters, from 0, the end not included)"
                )
            for i in inside:
                tags[i] = f"I-{kind}"
            tags[inside[0]], last = f"B-{kind}", end
        return {"text": text, "starts": [begin for begin, _ in words], "ends": [end for _, end in words], "tags": tags}

    def _spans(self, spans: Any, length: int) -> Iterator[tuple[int, int, int, str]]:
        """(number, start, end, kind) in the order of the text."""
        spans = list_in_text(spans)
        if isinstance(spans, dict):  # as `datasets` gives a list of objects that it has as columns
            spans = [dict(zip(spans, each, strict=True)) for each in zip(*spans.values(), strict=True)]
        if not isinstance(spans, list):
            raise ValueError(f"`spans` is a {type(spans).__name__}, expected a list of {{start, end, label}}")
        found = []
        for number, span in enumerate(spans, start=1):
            start, end, kind = _parts(span, number)
            if not all(isinstance(place, int) and not isinstance(place, bool) for place in (start, end)):
                raise ValueError(f"span {number}: start and end should be whole numbers")
            if not 0 <= start < end <= length:
                raise ValueError(f"span {number} is characters {start} to {end} of a text of {length}")
            if not isinstance(kind, str) or not kind:
                raise ValueError(f"span {number}: its label is a {type(kind).__name__}, expected a string")
            self._check_kind(kind)
            found.append((number, start, end, kind))
        yield from sorted(found, key=lambda span: span[1])


@dataclass(frozen=True)
class UntaggedWords:
    """Form of a new row without tags: words, or a text."""

    annotation: Annotation
    """what the source has: a list of words, or a text that is cut into words"""
    optional: Sequence[str] = ()
    """roles of columns that are used where the source has them"""

    @property
    def required(self) -> Sequence[str]:
        """Roles of the columns."""
        return TaggedWords(self.annotation, ()).required[:1]

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """As of words none of which is in a span."""
        (role,) = self.required
        words = list_in_text(values[role]) if self.annotation == "words" else values[role]
        nothing = [OUTSIDE] * len(words) if self.annotation == "words" and isinstance(words, list) else []
        return TaggedWords(self.annotation, ()).convert({role: words, "tags": nothing, "spans": []})

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """The text."""
        return [row["text"]]


def as_iob2(tags: Sequence[Any], scheme: Scheme) -> list[Any]:
    """The tags with B- at the beginning of every span and I- in it; what is no tag stays, for others to refuse.

    iob1: a span begins with B- only where one of its kind ends right before it. bioes: E- ends a span, S- is one alone
    (BILOU: L- and U-).
    """
    if scheme == "iob2":
        return list(tags)
    found, before = list[Any](), OUTSIDE
    for tag in tags:
        if isinstance(tag, str) and tag[1:2] == "-":
            prefix, kind = tag[0], tag[2:]
            if scheme == "iob1" and prefix == "I" and before[2:] != kind:
                prefix = "B"
            elif scheme == "bioes":
                prefix = {"S": "B", "U": "B", "E": "I", "L": "I"}.get(prefix, prefix)
            tag = f"{prefix}-{kind}"
        found.append(tag)
        before = tag if isinstance(tag, str) else OUTSIDE
    return found


def _parts(span: Any, number: int) -> tuple[Any, Any, Any]:
    """start, end and label of an object, or of a list of the three."""
    if isinstance(span, list) and len(span) == 3:
        return span[0], span[1], span[2]
    kind = next((name for name in SPAN_KINDS if isinstance(span, dict) and name in span), "")
    if not kind or not {"start", "end"} <= span.keys():
        raise ValueError(f"span {number} is no object with start, end and label")
    return span["start"], span["end"], span[kind]


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each word: letters, digits, or a single character of another kind.

    That does not depend on the tokenizer, so that scores of two models are about the same words.
    """
    if text.isascii():
        yield from (match.span() for match in _ASCII.finditer(text))
        return
    start, kind = 0, ""
    for place, char in enumerate(text):
        group = unicodedata.category(char)[0]
        now = "L" if group in "LM" else group
        if _UNSPACED.match(char):
            now = "*"
        if kind and (now != kind or kind not in "LN"):
            yield start, place
            kind = ""
        if not kind and not char.isspace() and group != "C":
            start, kind = place, now
    if kind:
        yield start, len(text)
