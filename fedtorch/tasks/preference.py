"""Answers that people prefer to others, or call good or bad: a decoder is trained by DPO, IPO or KTO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.core.ranges import BelowHalf, Positive
from fedtorch.data.own.rows import Form
from fedtorch.tasks.base import Scores
from fedtorch.tasks.continued import refuse_looking_ahead
from fedtorch.tasks.judged import (
    Judged,
    Likelihoods,
    Pairs,
    Verdicts,
    answer_likelihoods,
    answered,
    both_texts,
)
from fedtorch.tasks.judged_task import JudgedTask
from fedtorch.tasks.new_rows import refuse_perplexity
from fedtorch.tasks.preference_losses import dpo, ipo, kl_estimate, kto
from fedtorch.tasks.text_generation import IGNORED


@dataclass(frozen=True, kw_only=True)
class Preference(JudgedTask):
    """DPO, IPO or KTO against the log-likelihoods of a reference, which are two numbers a row and no second model.

    B rows, 2 texts each, T tokens. log π of an answer is the sum over its tokens, its end token among them.
    """

    head: ClassVar[Any] = "CausalLM"
    task_kind: ClassVar[str] = "preference"
    main_metric: ClassVar[str] = "reward_accuracy"

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
    def has_verdicts(self) -> bool:
        """For KTO."""
        return self.kind == "kto"

    @property
    def refers_to(self) -> Literal["", "start", "round"]:
        """As `reference` says."""
        return self.reference

    @property
    def mixes_rows(self) -> bool:
        """KTO's z is a mean over a micro-batch, of prompts with answers to others."""
        return self.kind == "kto"

    def label_of(self, row: Mapping[str, Any]) -> Any:
        """Desirable or not, in words, of KTO's answers."""
        return ("undesirable", "desirable")[row["label"]] if "label" in row else None

    def build_model(self, seed: int) -> nn.Module:
        """The model, which foretells tokens from those before them.

        Raises:
            ConfigError: it also sees tokens after them.
        """
        model = super().build_model(seed)
        refuse_looking_ahead(model, self.source_model.named, self.max_length)
        return model

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Judged]:
        """Tokens of both texts of every row.

        KTO's second text is the prompt with the answer of the row before it, of the first row the last one's: so which
        they are does not depend on batches, and their reference is computed once. TRL turns answers around within each
        batch of its data, which must then come in a fixed order.
        """
        if self.kind != "kto":
            return super().examples(rows, where)
        self.check_template(rows)
        tokens = self.tokens
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
        return self.scores_of(leads, self.beta)

    def _lead(self, example: Judged, found: Likelihoods) -> float:
        assert example.reference is not None, "evaluated without a reference"
        first, second = (now - before for now, before in zip(found, example.reference, strict=True))
        if self.kind == "kto":
            return first if example.is_desirable else -first
        return first - second

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
