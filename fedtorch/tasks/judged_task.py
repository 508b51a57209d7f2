"""Common part of tasks over judged answers: their tokens, their form, and models without dropout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Self

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.rows import Form
from fedtorch.models.dropout import without_dropout
from fedtorch.tasks.base import Scores
from fedtorch.tasks.continued import Continued, Tokens
from fedtorch.tasks.judged import Judged, Pairs, Verdicts, answered
from fedtorch.tasks.own import OwnTask
from fedtorch.text.chat import take_template

MARGIN = "margin"
_MOST_UNSUPERVISED = 0.01


@dataclass(frozen=True, kw_only=True)
class JudgedTask(OwnTask):
    """A task over pairs of a better and a worse answer, or over answers with a verdict."""

    takes_metrics: ClassVar[bool] = False

    chat_template: Path | None = None
    """a file with a chat template in place of the tokenizer's"""
    dropout: bool = False
    """leave the model's and the adapter's dropout on in training: the first loss is then not that of no preference"""

    @property
    def has_verdicts(self) -> bool:
        """Is a row one answer, that is good or not, in place of two?"""
        return False

    @property
    def tokens(self) -> Tokens:
        """How rows become tokens."""
        return Tokens(self, learns_all=False, keeps_prompt=False)

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with the chat template that is to be used."""
        tokenizer = super().vocabulary
        if self.chat_template is not None:
            take_template(tokenizer, self.chat_template)
        return tokenizer

    def form(self) -> Form:
        """Pairs, or answers with verdicts."""
        return Verdicts() if self.has_verdicts else Pairs()

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """Texts, or messages."""
        return ("prompt", "completion", "label") if self.has_verdicts else ("prompt", "chosen", "rejected")

    def labels_named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """There are none; what transformers puts there means nothing."""
        return self.data.labels

    def settings(self) -> dict[str, Any]:
        """Also the form of rows."""
        return {**super().settings(), "rows": "verdicts" if self.has_verdicts else "pairs"}

    def trained(self, folder: Path) -> Self:
        """With the chat template that lies beside the model."""
        return replace(super().trained(folder), chat_template=None)

    def build_model(self, seed: int) -> nn.Module:
        """The model, without dropout unless it was asked for."""
        model = super().build_model(seed)
        return model if self.dropout else without_dropout(model)

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Judged]:
        """Tokens of both texts of every pair."""
        self.check_template(rows)
        tokens = self.tokens
        return [
            Judged(answered(tokens, row, row["chosen"], where), answered(tokens, row, row["rejected"], where))
            for row in rows
        ]

    def check_template(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse messages where the tokenizer has no template for them.

        Raises:
            ConfigError: it names the key.
        """
        if any(isinstance(row["prompt"], list) for row in rows) and not self.vocabulary.chat_template:
            raise ConfigError("rows are messages but the tokenizer has no chat template; give task.chat_template")

    def refuse(self, examples: Sequence[Judged], where: str) -> None:
        """Where an answer of more than 1 % of them has no token within `max_length`."""
        if (empty := self.unsupervised(examples)) > _MOST_UNSUPERVISED * len(examples):
            raise DataError(
                f"{where}: {empty} of {len(examples)} rows have an answer without a token within task.max_length = "
                f"{self.max_length}; raise it, set task.truncate to left, or leave empty answers out"
            )

    def unsupervised(self, examples: Sequence[Judged]) -> int:
        """Those an answer of which has no token within `max_length`."""
        return sum(not all(text.learned for text in self._own(example)) for example in examples)

    def _own(self, example: Judged) -> tuple[Continued, ...]:
        """The texts that are the row's own."""
        return (example.first,) if self.has_verdicts else (example.first, example.second)

    def example_lengths(self, examples: Sequence[Judged]) -> list[tuple[int, ...]]:
        """Tokens of each row, as if both texts were as long as the longer one."""
        return [(2 * max(len(one.first.ids), len(one.second.ids)),) for one in examples]

    def read_lengths(self, examples: Sequence[Judged]) -> list[tuple[int, ...]]:
        """Tokens of the longer text."""
        return [(max(len(text.ids) for text in self._own(one)),) for one in examples]

    def texts_read(self, row: Mapping[str, Any]) -> list[str]:
        """Those of the longer text."""
        if self.has_verdicts:
            return super().texts_read(row)
        each = [
            list(self.form().texts({**row, "chosen": row[name], "rejected": ""})) for name in ("chosen", "rejected")
        ]
        return max(each, key=lambda texts: sum(map(len, texts)))

    def supervised(self, example: Judged) -> int | None:
        """Tokens of the row's own answers."""
        return sum(text.learned for text in self._own(example))

    @property
    def max_learned(self) -> int:
        """Tokens of a row's own answers at most."""
        return self.max_length * (1 if self.has_verdicts else 2)

    def terms(self, batch: Mapping[str, Tensor]) -> int:
        """Rows."""
        return len(batch["input_ids"])

    def scores_of(self, leads: Sequence[float], beta: float = 1.0) -> Scores:
        """The share of rows whose better answer leads, and the mean of β times its lead; a tie is no win."""
        wins = float(sum(lead > 0 for lead in leads))
        return {self.main_metric: (wins, len(leads)), MARGIN: (beta * sum(leads), len(leads))}

    def metrics(self) -> tuple[str, ...]:
        """Both are means over rows."""
        return (self.main_metric, MARGIN)

    def single_metrics(self) -> tuple[str, ...]:
        """Both."""
        return self.metrics()
