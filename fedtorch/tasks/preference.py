"""Answers that people prefer to others, or call good or bad: a decoder is trained by DPO, IPO or KTO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Self

from fedtorch.core.errors import ConfigError, DataError, FedtorchError
from fedtorch.core.ranges import BelowHalf, Positive
from fedtorch.data.own.rows import Form
from fedtorch.models.dropout import without_dropout
from fedtorch.tasks.base import Scores
from fedtorch.tasks.continued import Continued, Tokens, refuse_looking_ahead
from fedtorch.tasks.judged import (
    Judged,
    Likelihoods,
    Pairs,
    Verdicts,
    answer_likelihoods,
    answered,
    both_texts,
)
from fedtorch.tasks.new_rows import refuse_perplexity
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.preference_losses import dpo, ipo, kl_estimate, kto
from fedtorch.tasks.text_generation import IGNORED
from fedtorch.text.chat import take_template

MARGIN = "margin"
_MOST_UNSUPERVISED = 0.01


@dataclass(frozen=True, kw_only=True)
class Preference(OwnTask):
    """DPO, IPO or KTO against the log-likelihoods of a reference, which are two numbers a row and no second model.

    B rows, 2 texts each, T tokens. log π of an answer is the sum over its tokens, its end token among them.
    """

    head: ClassVar[Any] = "CausalLM"
    task_kind: ClassVar[str] = "preference"
    main_metric: ClassVar[str] = "reward_accuracy"
    takes_metrics: ClassVar[bool] = False

    kind: Literal["dpo", "ipo", "kto"] = "dpo"
    """dpo, ipo: rows with a prompt, a chosen and a rejected answer; kto: with a prompt, a completion and a label"""
    beta: Positive = 0.1
    """how dear it is to move away from the reference; in IPO's paper τ"""
    label_smoothing: BelowHalf = 0.0
    """of dpo: the share ε of rows that are thought to be the wrong way round"""
    ipo_length: Literal["mean", "sum"] = "mean"
    """of ipo: log-ratios are divided by the tokens of their answers, as TRL does, or are sums, as in the paper"""
    desirable_weight: Positive = 1.0
    """of kto: what a desirable answer counts, λ_D"""
    undesirable_weight: Positive = 1.0
    """of kto: what another answer counts, λ_U"""
    reference: Literal["start", "round"] = "start"
    """in training the model that the run starts from (of a new adapter: its base alone), or that of the round's start;
    scores are always by the first"""
    chat_template: Path | None = None
    """a file with a chat template in place of the tokenizer's"""
    dropout: bool = False
    """leave the model's and the adapter's dropout on in training: the first loss is then not that of no preference"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, kind, value, plain in (
            ("label_smoothing", "dpo", self.label_smoothing, 0.0),
            ("ipo_length", "ipo", self.ipo_length, "mean"),
            ("desirable_weight", "kto", self.desirable_weight, 1.0),
            ("undesirable_weight", "kto", self.undesirable_weight, 1.0),
        ):
            if value != plain and self.kind != kind:
                raise ConfigError(
                    f"task.{key} is {value} but task.kind is {self.kind}; it is for {kind}, remove task.{key}"
                )

    @property
    def refers_to(self) -> Literal["", "start", "round"]:
        """As `reference` says."""
        return self.reference

    @property
    def mixes_rows(self) -> bool:
        """KTO's z is a mean over a micro-batch, of prompts with answers to others."""
        return self.kind == "kto"

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
        """As `kind` says."""
        return Verdicts() if self.kind == "kto" else Pairs()

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """By `kind`: texts, or messages."""
        return ("prompt", "completion", "label") if self.kind == "kto" else ("prompt", "chosen", "rejected")

    def label_of(self, row: Mapping[str, Any]) -> Any:
        """Desirable or not, in words, of KTO's answers."""
        return ("undesirable", "desirable")[row["label"]] if "label" in row else None

    def labels_named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """A decoder has none; what transformers puts there means nothing."""
        return self.data.labels

    def settings(self) -> dict[str, Any]:
        """Also the form of rows."""
        return {**super().settings(), "rows": "verdicts" if self.kind == "kto" else "pairs"}

    def trained(self, folder: Path) -> Self:
        """With the chat template that lies beside the model."""
        return replace(super().trained(folder), chat_template=None)

    def build_model(self, seed: int) -> nn.Module:
        """The model, which foretells tokens from those before them, without dropout unless it was asked for.

        Raises:
            ConfigError: it also sees tokens after them.
        """
        model = super().build_model(seed)
        refuse_looking_ahead(model, self.source_model.named, self.max_length)
        return model if self.dropout else without_dropout(model)

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Judged]:
        """Tokens of both texts of every row.

        KTO's second text is the prompt with the answer of the row before it, of the first row the last one's: so which
        they are does not depend on batches, and their reference is computed once. TRL turns answers around within each
        batch of its data, which must then come in a fixed order.
        """
        self._check_template(rows)
        tokens = self.tokens
        if self.kind != "kto":
            return [
                Judged(answered(tokens, row, row["chosen"], where), answered(tokens, row, row["rejected"], where))
                for row in rows
            ]
        before = [rows[place - 1] for place in range(len(rows))]
        return [
            Judged(
                answered(tokens, row, row["completion"], where),
                answered(tokens, row, other["completion"], where),
                is_desirable=row.get("label", True),
                has_other=len(rows) > 1,
            )
            for row, other in zip(rows, before, strict=True)
        ]

    def _check_template(self, rows: Sequence[Mapping[str, Any]]) -> None:
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
        return (example.first,) if self.kind == "kto" else (example.first, example.second)

    def example_lengths(self, examples: Sequence[Judged]) -> list[tuple[int, ...]]:
        """Tokens of each row, as if both texts were as long as the longer one."""
        return [(2 * max(len(one.first.ids), len(one.second.ids)),) for one in examples]

    def read_lengths(self, examples: Sequence[Judged]) -> list[tuple[int, ...]]:
        """Tokens of the longer text."""
        return [(max(len(text.ids) for text in self._own(one)),) for one in examples]

    def texts_read(self, row: Mapping[str, Any]) -> list[str]:
        """Those of the longer text."""
        if self.kind == "kto":
            return super().texts_read(row)
        each = [
            list(self.form().texts({**row, "chosen": row[name], "rejected": ""})) for name in ("chosen", "rejected")
        ]
        return max(each, key=lambda texts: sum(map(len, texts)))

    def supervised(self, example: Judged) -> int:
        """Tokens of the row's own answers."""
        return sum(text.learned for text in self._own(example))

    @property
    def max_learned(self) -> int:
        """Tokens of a row's own answers at most."""
        return self.max_length * (1 if self.kind == "kto" else 2)

    def collate(self, examples: Sequence[Judged], train: bool) -> dict[str, Tensor]:
        """input_ids, attention_mask, labels (B, 2, T), -100 is what is not an answer's; reference (B, 2), and of KTO
        is_desirable and has_other (B,).

        Raises:
            FedtorchError: an example has no reference.
        """
        if any(example.reference is None for example in examples):
            raise FedtorchError("a row has no reference, which whoever loads it has to give it by `with_reference`")
        batch = {
            **both_texts(examples, self.vocabulary.pad_token_id),
            "reference": torch.tensor([example.reference for example in examples]),
        }
        if self.kind == "kto":
            batch["is_desirable"] = torch.tensor([example.is_desirable for example in examples])
            batch["has_other"] = torch.tensor([example.has_other for example in examples])
        return batch

    def _log_likelihoods(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """log π of both answers (B,), fp32; that of KTO to another prompt has no gradient."""
        both = [batch[name] for name in ("input_ids", "attention_mask", "labels")]
        if self.kind != "kto":
            found = answer_likelihoods(model, *(tensor.flatten(0, 1) for tensor in both)).view(-1, 2)
            return found[:, 0], found[:, 1]
        first = answer_likelihoods(model, *(tensor[:, 0] for tensor in both))
        with torch.no_grad():
            return first, answer_likelihoods(model, *(tensor[:, 1] for tensor in both))

    def reference_of(self, model: nn.Module, examples: Sequence[Judged]) -> Tensor:
        """log π_ref of both answers, (B, 2)."""
        device = next(model.parameters()).device
        texts = both_texts(examples, self.vocabulary.pad_token_id)
        batch = {name: tensor.to(device) for name, tensor in texts.items()}
        return torch.stack(self._log_likelihoods(model, batch), 1)

    def with_reference(self, examples: Sequence[Judged], found: Tensor) -> list[Judged]:
        """Each with its two numbers."""
        return [replace(one, reference=(a, b)) for one, (a, b) in zip(examples, found.tolist(), strict=True)]

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """(sum over rows, their number)."""
        first, second = self._log_likelihoods(model, batch)
        reference = batch["reference"]
        first, second = first - reference[:, 0], second - reference[:, 1]
        if self.kind == "kto":
            kl, weights = kl_estimate(second, batch["has_other"]), (self.desirable_weight, self.undesirable_weight)
            each = kto(first, kl, batch["is_desirable"], self.beta, weights)
        elif self.kind == "ipo":
            if self.ipo_length == "mean":
                tokens = (batch["labels"] != IGNORED).sum(2).clamp(min=1)
                first, second = first / tokens[:, 0], second / tokens[:, 1]
            each = ipo(first - second, self.beta)
        else:
            each = dpo(first - second, self.beta, self.label_smoothing)
        return each.sum(), len(each)

    def terms(self, batch: Mapping[str, Tensor]) -> int:
        """Rows."""
        return len(batch["input_ids"])

    @torch.inference_mode()
    def predict(self, model: nn.Module, examples: Sequence[Judged], batch_size: int) -> list[Likelihoods]:
        """Likelihoods of both answers, in the order and batches of the reference: at the start the same bits."""
        parts = [examples[start : start + batch_size] for start in range(0, len(examples), batch_size)]
        return [Likelihoods(*pair) for part in parts for pair in self.reference_of(model, part).tolist()]

    def score(self, examples: Sequence[Judged], predictions: Sequence[Likelihoods]) -> Scores:
        """reward_accuracy, the share of rows with h > 0, and margin, the mean of βh; a tie is no win.

        Of KTO h is the log-ratio r of a desirable answer, and −r of another.
        """
        leads = [self._lead(example, found) for example, found in zip(examples, predictions, strict=True)]
        wins = float(sum(lead > 0 for lead in leads))
        return {self.main_metric: (wins, len(leads)), MARGIN: (self.beta * sum(leads), len(leads))}

    def _lead(self, example: Judged, found: Likelihoods) -> float:
        assert example.reference is not None, "evaluated without a reference"
        first, second = (now - before for now, before in zip(found, example.reference, strict=True))
        if self.kind == "kto":
            return first if example.is_desirable else -first
        return first - second

    def metrics(self) -> tuple[str, ...]:
        """Both are means over rows."""
        return (self.main_metric, MARGIN)

    def single_metrics(self) -> tuple[str, ...]:
        """Both."""
        return self.metrics()

    def new_form(self, *, perplexity: bool = False) -> Form:
        """Rows as in training, but for KTO's label."""
        refuse_perplexity(self.task_kind, perplexity)
        return Verdicts(("prompt", "completion")) if self.kind == "kto" else Pairs()

    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """How likely the answers of a row are, and which is the likelier one; by the trained model alone."""
        examples = [example for row in rows for example in self.examples([row], row["where"])]
        found = self.predict(model, examples, batch_size)
        if self.kind == "kto":
            return [
                {"log_likelihood": a, "tokens": one.first.learned} for (a, _), one in zip(found, examples, strict=True)
            ]
        return [
            {
                "likelier": "chosen" if a > b else "rejected",
                "log_likelihoods": {"chosen": a, "rejected": b},
                "tokens": {"chosen": one.first.learned, "rejected": one.second.learned},
            }
            for (a, b), one in zip(found, examples, strict=True)
        ]
