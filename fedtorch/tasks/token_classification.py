"""Texts whose words get tags, such as names of persons and places, by any model with a head for tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.scores import COUNT
from fedtorch.metrics.confusion import Counts, f1_macro
from fedtorch.metrics.spans import OUTSIDE, count_spans
from fedtorch.models.padding import by_length, pad
from fedtorch.tasks.base import Scores
from fedtorch.tasks.chosen_metrics import pooled
from fedtorch.tasks.long_texts import LongTexts, best_windows, padded, split_up
from fedtorch.tasks.new_rows import refuse_perplexity
from fedtorch.tasks.tagged_words import Annotation, Scheme, TaggedWords, UntaggedWords
from fedtorch.tasks.word_tokens import Example, first_pieces, spans_in_text, tags_of_words

IGNORED = -100
"""The target of a token that is no word's first."""
F1, ACCURACY = "f1", "accuracy"
_SIDES = ("hits", "predicted", "true")


@dataclass(frozen=True, kw_only=True)
class TokenClassification(LongTexts):
    """Cross entropy over IOB2 tags at the first piece of each word."""

    main_metric: ClassVar[str] = F1
    head: ClassVar[Any] = "TokenClassification"
    task_kind: ClassVar[str] = "token_classification"
    built_in: ClassVar[Mapping[str, Any]] = {
        ACCURACY: ACCURACY,
        "span_f1": "f1",
        "span_precision": "precision",
        "span_recall": "recall",
        "macro_f1": "f1_macro",
    }

    annotation: Annotation = "words"
    """what a row has: `words`, lists `tokens` and `tags` (IOB2); or `spans`, a `text` and {start, end, label} in it"""

    scheme: Scheme = "iob2"
    """how `tags` say where a span begins: `iob2`, with B-; `iob1`, with I- unless one of its kind ends right before
    it, then B-; `bioes`, with B-, its end with E-, and S- for a span of one word (or L- and U-)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme != "iob2" and self.annotation == "spans":
            raise ConfigError(
                f"task.scheme is {self.scheme}, but task.annotation is spans, which have no tags; leave it out"
            )
        if wrong := [label for label in self.data.labels if label == OUTSIDE or label[:2] in ("B-", "I-")]:
            raise ConfigError(
                f"task.data.labels has {wrong[0]!r}; name the kinds of spans, as [PER, LOC]: O, B-PER, I-PER and so on "
                "follow from them"
            )
        other: Annotation = "spans" if self.annotation == "words" else "words"
        if found := [role for role in self.data.columns if role in TaggedWords(other, ()).required]:
            raise ConfigError(f"task.data.columns has `{found[0]}`, which is for task.annotation: {other}; set that")

    @property
    def has_labels(self) -> bool:
        """Kinds of spans."""
        return True

    def form(self) -> TaggedWords:
        """Words and their tags."""
        return TaggedWords(self.annotation, self.data.labels, scheme=self.scheme)

    def label_of(self, row: Mapping[str, Any]) -> list[str]:
        """Kinds of the spans in it."""
        return sorted({tag[2:] for tag in row["tags"] if tag != OUTSIDE})

    def settings(self) -> dict[str, Any]:
        """Also what a row has."""
        scheme = {} if self.scheme == "iob2" else {"scheme": self.scheme}  # as before there was another one
        return {**super().settings(), "annotation": self.annotation, **scheme}

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

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Example]:
        """Tokens of every row, as `OwnTask` reads them."""
        examples = []
        places = [row.get("where", where) for row in rows]
        for windows, row in zip(
            self.encoded([row["text"] for row in rows], where=places, offsets=True), rows, strict=True
        ):
            words = list(zip(row["starts"], row["ends"], strict=True))
            tags = [self._number(tag, where) for tag in row["tags"]]
            pieces = best_windows([first_pieces(words, window.offsets) for window in windows], windows)
            examples.append(Example(windows[0].ids, pieces, tags, [window.ids for window in windows[1:]]))
        return examples

    def example_lengths(self, examples: Sequence[Example]) -> list[tuple[int, ...]]:
        """Tokens of each, as if all its windows were as long as the first."""
        return [(len(example.ids) * len(example.windows),) for example in examples]

    def supervised(self, example: Example) -> int:
        """Labelled words."""
        return len(example.labelled)

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Tensor]:
        """input_ids, attention_mask and targets: (windows of all texts, longest), int64."""
        ids, targets = [window for example in examples for window in example.windows], list[list[int]]()
        for example in examples:
            tags = [IGNORED] * sum(map(len, example.windows))
            for piece, tag in example.labelled:
                tags[piece] = tag
            targets += split_up(tags, example.windows)
        return {**padded(ids, self.vocabulary.pad_token_id or 0), "targets": pad(targets, IGNORED)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor | int]:
        """(sum over labelled words, their number)."""
        logits, targets = self.logits(model, batch).float(), batch["targets"]
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED
        )
        return total, (targets != IGNORED).sum().clamp(min=1)  # a tokenizer may drop a row's only word

    def terms(self, batch: dict[str, Tensor]) -> int:
        """Labelled words."""
        return int((batch["targets"] != IGNORED).sum())

    def logits(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """(batch, longest, tags). Without token types: there is one text, and decoders would add words for them."""
        found: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return found

    def predict(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[list[int]]:
        """Number of the likeliest tag of each word; O where it was cut away."""
        device = next(model.parameters()).device
        found: list[list[int]] = [[] for _ in examples]
        for picked in by_length([sum(each) for each in self.example_lengths(examples)], batch_size):
            batch = self.collate([examples[i] for i in picked], False)
            best = iter(self.logits(model, {key: value.to(device) for key, value in batch.items()}).argmax(-1).tolist())
            for i in picked:
                tags = [tag for window in examples[i].windows for tag in next(best)[: len(window)]]
                found[i] = tags_of_words(examples[i].pieces, tags)
        return found

    def score(self, examples: Sequence[Example], predictions: Sequence[Sequence[int]]) -> Scores:
        """F1 of spans, accuracy over words, and their counts by the number of their kind.

        F1 is 2 · hits / (predicted + true), so with that denominator for its number it pools over clients as it should.
        """
        pairs = [(example.tags, found) for example, found in zip(examples, predictions, strict=True)]
        hits = sum(true == tag for tags, found in pairs for true, tag in zip(tags, found, strict=True))
        true, predicted = ([[self.tags[tag] for tag in pair[side]] for pair in pairs] for side in (0, 1))
        kinds = count_spans(true, predicted, self.labels)
        total = sum(kinds, Counts())
        scores: Scores = {
            F1: (2.0 * total.hits, int(total.predicted + total.true)),
            ACCURACY: (float(hits), sum(len(tags) for tags, _ in pairs)),
        }
        for kind, counts in enumerate(kinds):
            for name in _SIDES:
                if value := getattr(counts, name):
                    scores[f"{COUNT}{kind}/{name}"] = (float(value), len(examples))
        return scores

    def behind(self, scores: Scores) -> dict[str, int]:
        """Figures of spans are of the true ones, those that are there to be found."""
        true = sum(count.true for count in self._counts({name: value for name, (value, _) in scores.items()}))
        names = [F1, *(name for name, figure in self.chosen.items() if figure in _figures([]))]
        return dict.fromkeys(names, int(true))

    def metrics(self) -> tuple[str, ...]:
        """Metrics that a best model can be chosen by."""
        return tuple(dict.fromkeys((*super().metrics(), ACCURACY)))

    def labels_named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Kinds of spans, from tags."""
        return tuple(name.removeprefix("B-") for name in names if name.startswith("B-"))

    def new_form(self, *, perplexity: bool = False) -> UntaggedWords:
        """Words, or a text."""
        refuse_perplexity(self.task_kind, perplexity)
        return UntaggedWords(self.annotation)

    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """A tag for each word; or the spans of a text: start, end (not included), label."""
        found = self.predict(model, self.examples(rows, ""), batch_size)
        tags = [[self.tags[number] for number in row] for row in found]
        if self.annotation == "words":
            return [{"tags": row} for row in tags]
        return [{"spans": spans_in_text(row, own)} for row, own in zip(rows, tags, strict=True)]

    def single_metrics(self) -> tuple[str, ...]:
        """None: each is about words or spans, of which texts have different numbers."""
        return ()

    def summary(self, scores: Mapping[str, Scores]) -> dict[str, Any]:
        """Figures of all spans together, as the seqeval library's, and of each client's and each kind's."""
        counts = self._counts(pooled(scores))
        kinds = {label: {"f1": count.f1, "spans": count.true} for label, count in zip(self.labels, counts, strict=True)}
        return {**super().summary(scores), "labels": kinds}

    def figures(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Figures of spans."""
        return _figures(self._counts(totals))

    def compared(self, examples: Sequence[Example], predictions: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Lists of IOB2 tags."""
        references = [example.tags for example in examples]
        found, true = ([[self.tags[tag] for tag in row] for row in side] for side in (predictions, references))
        return found, true

    def _counts(self, totals: Mapping[str, float]) -> list[Counts]:
        return [
            Counts(*(totals.get(f"{COUNT}{kind}/{name}", 0.0) for name in _SIDES)) for kind in range(len(self.labels))
        ]

    def _number(self, tag: str, where: str) -> int:
        try:
            return self.numbers[tag]
        except KeyError:
            raise DataError(f"{where} has the tag {tag!r}, which is not among {', '.join(self.tags)}") from None


def _figures(counts: Sequence[Counts]) -> dict[str, float]:
    total = sum(counts, Counts())
    return {"f1": total.f1, "precision": total.precision, "recall": total.recall, "f1_macro": f1_macro(counts)}
