"""Texts whose words get tags, such as names of persons and places, by any model with a head for tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.scores import COUNT
from fedtorch.metrics.confusion import Counts, f1_macro
from fedtorch.metrics.spans import OUTSIDE, count_spans, spans_of
from fedtorch.models.padding import by_length, pad
from fedtorch.tasks.base import Scores
from fedtorch.tasks.own import OwnTask, pooled
from fedtorch.tasks.tagged_words import Annotation, TaggedWords, UntaggedWords

IGNORED = -100
"""The target of a token that is no word's first."""
_SIDES = ("hits", "predicted", "true")


@dataclass(frozen=True)
class Example:
    """A tokenised text and its words."""

    ids: list[int]
    pieces: list[int]
    """place in `ids` of each word's first piece; the one of the word before where they share it; −1: cut away"""
    tags: list[int]
    """number of each word's tag"""

    @property
    def labelled(self) -> list[tuple[int, int]]:
        """(place in `ids`, tag) of words with a piece of their own."""
        before = [-1, *self.pieces]
        rows = zip(before, self.pieces, self.tags, strict=False)
        return [(piece, tag) for last, piece, tag in rows if piece >= 0 and piece != last]


@dataclass(frozen=True, kw_only=True)
class TokenClassification(OwnTask):
    """Cross entropy over IOB2 tags at the first piece of each word."""

    main_metric: ClassVar[str] = "accuracy"
    head: ClassVar[Any] = "TokenClassification"
    kind: ClassVar[str] = "token_classification"

    annotation: Annotation = "words"
    """what a row has: `words`, lists `tokens` and `tags` (IOB2); or `spans`, a `text` and {start, end, label} in it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [label for label in self.data.labels if label == OUTSIDE or label[:2] in ("B-", "I-")]:
            raise ConfigError(
                f"task.data.labels has {wrong[0]!r}; name the kinds of spans, as [PER, LOC]: O, B-PER, I-PER and so on "
                "follow from them"
            )
        other: Annotation = "spans" if self.annotation == "words" else "words"
        if found := [role for role in self.data.columns if role in TaggedWords(other, ()).required]:
            raise ConfigError(f"task.data.columns has `{found[0]}`, which is for task.annotation: {other}; set that")

    def form(self) -> TaggedWords:
        """Words and their tags."""
        return TaggedWords(self.annotation, self.data.labels)

    def label_of(self, row: Mapping[str, Any]) -> list[str]:
        """Kinds of the spans in it."""
        return sorted({tag[2:] for tag in row["tags"] if tag != OUTSIDE})

    def settings(self) -> dict[str, Any]:
        """Also what a row has."""
        return {**super().settings(), "annotation": self.annotation}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Kinds of spans in the order of their numbers.

        Raises:
            DataError: there are none.
        """
        if self.data.labels:
            return self.data.labels
        found = {label for entry in self.prepared["clients"].values() for label in entry.get("labels", {})}
        if not (labels := tuple(sorted(found))):
            raise DataError(f"no row of {self.data.source} has a span, so there is nothing to learn")
        return labels

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """O, then B- and I- of each kind, in the order of their numbers."""
        return (OUTSIDE, *(f"{prefix}-{label}" for label in self.labels for prefix in "BI"))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Tag -> its number."""
        return {tag: number for number, tag in enumerate(self.tags)}

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer, one that tells where in the text a token stands.

        Raises:
            ConfigError: it does not.
        """
        tokenizer = super().vocabulary
        if not tokenizer.is_fast:
            raise ConfigError(
                f"{type(tokenizer).__name__} does not say where in a text its tokens stand, which tagging words needs; "
                "set task.tokenizer to one that has a tokenizer.json, or choose another model"
            )
        return tokenizer

    def head_settings(self) -> dict[str, Any]:
        """Tags by number, for whoever loads the model later."""
        return {"num_labels": len(self.tags), "id2label": dict(enumerate(self.tags)), "label2id": self.numbers}

    def check(self, client: str) -> str | None:
        """How many words no token stands for."""
        found = [piece for split in self.manifest()[client] for row in self.load(client, split) for piece in row.pieces]
        if not (lost := sum(piece < 0 for piece in found)):
            return None
        return f"{lost} of {len(found)} words lie beyond task.max_length {self.max_length}; they count as predicted O"

    def load(self, client: str, split: str) -> list[Example]:
        """Tokenised rows of one client."""
        rows = self.rows(client, split)
        return self._encoded(rows, f"{split} of client {client}") if rows else []

    def _encoded(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Example]:
        vocabulary = self.vocabulary
        side: Any = "left" if self.truncate == "left" else "right"
        vocabulary.truncation_side = side
        limit = {} if self.truncate == "refuse" else {"truncation": True, "max_length": self.max_length}
        found = vocabulary([row["text"] for row in rows], return_offsets_mapping=True, **limit)
        examples = []
        for ids, offsets, row in zip(found["input_ids"], found["offset_mapping"], rows, strict=True):
            self.cut(ids, self.max_length, row.get("where", where))
            words = list(zip(row["starts"], row["ends"], strict=True))
            tags = [self._number(tag, where) for tag in row["tags"]]
            examples.append(Example(ids, first_pieces(words, offsets), tags))
        return examples

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Tensor]:
        """input_ids, attention_mask and targets: (batch, longest), int64."""
        ids = [example.ids for example in examples]
        targets = torch.full((len(ids), max(map(len, ids))), IGNORED)
        for row, example in enumerate(examples):
            for piece, tag in example.labelled:
                targets[row, piece] = tag
        return {
            "input_ids": pad(ids, self.vocabulary.pad_token_id or 0),
            "attention_mask": pad([[1] * len(row) for row in ids], 0),
            "targets": targets,
        }

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor | int]:
        """(sum over labelled words, their number)."""
        logits, targets = self.logits(model, batch).float(), batch["targets"]
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED
        )
        return total, (targets != IGNORED).sum().clamp(min=1)  # a tokenizer may drop a row's only word

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """(batch, longest, tags). Without token types: there is one text, and decoders would add words for them."""
        found: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return found

    def predict(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[list[int]]:
        """Number of the likeliest tag of each word; O where it was cut away."""
        device = next(model.parameters()).device
        found: list[list[int]] = [[] for _ in examples]
        for picked in by_length([len(example.ids) for example in examples], batch_size):
            batch = self.collate([examples[i] for i in picked], False)
            best = self.logits(model, {key: value.to(device) for key, value in batch.items()}).argmax(-1).tolist()
            for i, row in zip(picked, best, strict=True):
                found[i] = _of_words(examples[i].pieces, row)
        return found

    def score(self, examples: Sequence[Example], predictions: Sequence[Sequence[int]]) -> Scores:
        """accuracy over words, and counts of spans by the number of their kind."""
        pairs = [(example.tags, found) for example, found in zip(examples, predictions, strict=True)]
        hits = sum(true == tag for tags, found in pairs for true, tag in zip(tags, found, strict=True))
        scores: Scores = {"accuracy": (float(hits), sum(len(tags) for tags, _ in pairs))}
        true, predicted = ([[self.tags[tag] for tag in pair[side]] for pair in pairs] for side in (0, 1))
        for kind, counts in enumerate(count_spans(true, predicted, self.labels)):
            for name in _SIDES:
                if value := getattr(counts, name):
                    scores[f"{COUNT}{kind}/{name}"] = (float(value), len(examples))
        return scores

    def labels_named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Kinds of spans, from tags."""
        return tuple(name.removeprefix("B-") for name in names if name.startswith("B-"))

    def new_form(self, *, perplexity: bool = False) -> UntaggedWords:
        """Words, or a text."""
        self.no_perplexity(perplexity)
        return UntaggedWords(self.annotation)

    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """A tag for each word; or the spans of a text: start, end (not included), label."""
        found = self.predict(model, self._encoded(rows, ""), batch_size)
        tags = [[self.tags[number] for number in row] for row in found]
        if self.annotation == "words":
            return [{"tags": row} for row in tags]
        return [{"spans": _in_text(row, own)} for row, own in zip(rows, tags, strict=True)]

    def single_metrics(self) -> tuple[str, ...]:
        """None: each is about words or spans, of which texts have different numbers."""
        return ()

    def summary(self, scores: Mapping[str, Scores]) -> dict[str, Any]:
        """Figures of all spans together, as the seqeval library's, and of each client's and each kind's."""
        each = {client: _figures(self._counts(pooled({client: found}))) for client, found in scores.items()}
        counts = self._counts(pooled(scores))
        kinds = {label: {"f1": count.f1, "spans": count.true} for label, count in zip(self.labels, counts, strict=True)}
        return {"pooled": _figures(counts), "clients": each, "labels": kinds}

    def _counts(self, totals: Mapping[str, float]) -> list[Counts]:
        return [
            Counts(*(totals.get(f"{COUNT}{kind}/{name}", 0.0) for name in _SIDES)) for kind in range(len(self.labels))
        ]

    def _number(self, tag: str, where: str) -> int:
        try:
            return self.numbers[tag]
        except KeyError:
            raise DataError(f"{where} has the tag {tag!r}, which is not among {', '.join(self.tags)}") from None


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


def _of_words(pieces: Sequence[int], tags: Sequence[int]) -> list[int]:
    """Tags of words from those of tokens; in a token that it shares a word goes on with the span of the word before."""
    found: list[int] = []
    for i, piece in enumerate(pieces):
        tag = tags[piece] if piece >= 0 else 0
        if piece >= 0 and i and piece == pieces[i - 1]:
            tag += tag % 2  # B- has an odd number, and I- of the same kind the next
        found.append(tag)
    return found


def _in_text(row: Mapping[str, Any], tags: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"start": row["starts"][first], "end": row["ends"][after - 1], "label": kind}
        for kind, first, after in spans_of(tags)
    ]


def _figures(counts: Sequence[Counts]) -> dict[str, float]:
    total = sum(counts, Counts())
    return {"f1": total.f1, "precision": total.precision, "recall": total.recall, "f1_macro": f1_macro(counts)}
