"""A text from a text, by any encoder-decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from fedtorch.core.ranges import Count
from fedtorch.core.scores import LOSS
from fedtorch.models.padding import pad
from fedtorch.tasks.base import Scores
from fedtorch.tasks.new_rows import NewPrompts, refuse_perplexity
from fedtorch.tasks.text_generation import IGNORED, SourceTarget, Texts, TextTask, token_loss


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(TextTask):
    """Cross entropy over the target's tokens, with the end token; what is generated is compared with the target."""

    head: ClassVar[Any] = "Seq2SeqLM"
    task_kind: ClassVar[str] = "seq2seq"

    max_target_length: Count = 128
    """tokens of the longest target, with the end token"""

    def chooses_by(self) -> str:
        """The loss for a model of random weights, whose answers are all wrong for many rounds."""
        return LOSS if self.source_model.random is not None else super().chooses_by()

    def form(self) -> Texts:
        """`source` and `target`, or the columns of the template and `target`."""
        return Texts((*(self.template_columns() if self.template else ["source"]), "target"), self.template)

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[SourceTarget]:
        """Tokens of every row, as `OwnTask` reads them; case and spaces are as in the file."""
        sources = self._encoded(rows, where)
        targets = self.vocabulary(text_target=[row["target"] for row in rows]).input_ids
        end = self.vocabulary.eos_token_id
        found = []
        for row, source, target in zip(rows, sources, targets, strict=True):
            target = target if target and target[-1] == end else [*target, end]
            found.append(SourceTarget(source, target[: self.max_target_length - 1] + [end]
                                   if len(target) > self.max_target_length else target, row["target"]))  # fmt: skip
        return found

    def _encoded(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[list[int]]:
        """Tokens of each source; what ends it stays where it is cut."""
        found, end = self.vocabulary([row["source"] for row in rows]).input_ids, self.vocabulary.eos_token_id
        return [
            self.cut(ids[:-1], self.max_length - 1, row.get("where", where)) + ids[-1:] if ids else [end]
            for row, ids in zip(rows, found, strict=True)
        ]

    def example_lengths(self, examples: Sequence[SourceTarget]) -> list[tuple[int, ...]]:
        """Lengths of source and target, which are padded each for itself."""
        return [(len(example.source), len(example.target)) for example in examples]

    @property
    def longest(self) -> tuple[int, ...]:
        """Longest source and target."""
        return self.max_length, self.max_target_length

    def supervised(self, example: SourceTarget) -> int:
        """Target tokens."""
        return len(example.target)

    @property
    def max_learned(self) -> int:
        """Most tokens of a target."""
        return self.max_target_length

    def collate(self, examples: Sequence[SourceTarget], train: bool) -> dict[str, Any]:
        """input_ids, attention_mask (B, longest source), labels (B, longest target), int64; -100 is padding."""
        sources = [example.source for example in examples]
        return {
            "input_ids": pad(sources, self.vocabulary.pad_token_id),
            "attention_mask": pad([[1] * len(row) for row in sources], 0),
            "labels": pad([example.target for example in examples], IGNORED),
        }

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """(sum over target tokens, their number)."""
        return token_loss(model(**batch, use_cache=False).logits, batch["labels"])

    def terms(self, batch: dict[str, Any]) -> int:
        """Target tokens."""
        return int((batch["labels"] != IGNORED).sum())

    def predict(self, model: nn.Module, examples: Sequence[SourceTarget], batch_size: int) -> list[str]:
        """Generated texts."""
        return self._texts(model, [example.source for example in examples], batch_size)

    def _texts(self, model: nn.Module, sources: Sequence[list[int]], batch_size: int) -> list[str]:
        ids = self.generated(model, sources, batch_size, left=False)
        return [self.vocabulary.decode(row, skip_special_tokens=True) for row in ids]

    def compared(self, examples: Sequence[SourceTarget], predictions: Sequence[str]) -> tuple[list[Any], list[Any]]:
        """Texts."""
        return list(predictions), [example.gold for example in examples]

    def new_form(self, *, perplexity: bool = False) -> NewPrompts:
        """`source`, or the columns of the template."""
        refuse_perplexity(self.task_kind, perplexity)
        return NewPrompts(self.template_columns() if self.template else ["source"], self.template)

    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """The generated text."""
        return [{"text": text} for text in self._texts(model, self._encoded(rows, ""), batch_size)]

    def score(self, examples: Sequence[SourceTarget], predictions: Sequence[str]) -> Scores:
        """Scores that `measures` names."""
        return self.text_scores(predictions, [example.gold for example in examples])
