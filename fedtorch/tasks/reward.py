"""Answers that people prefer to others: a model with one number as its head learns to give the better one more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.rows import Form
from fedtorch.models.classified import classify
from fedtorch.tasks.base import Scores
from fedtorch.tasks.judged import Judged, Pairs, both_texts
from fedtorch.tasks.judged_task import JudgedTask
from fedtorch.tasks.new_rows import refuse_perplexity


@dataclass(frozen=True, kw_only=True)
class Reward(JudgedTask):
    """Bradley and Terry's model: −log σ(r(chosen) − r(rejected)), r the model's one number for a whole text.

    B rows, 2 texts each, T tokens. At the start the loss is near ln 2.
    """

    head: ClassVar[Any] = "SequenceClassification"
    task_kind: ClassVar[str] = "reward"
    main_metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_weight == "tokens":
            raise ConfigError("task.client_weight is tokens, but a text has one number for all of them; set examples")

    def head_settings(self) -> dict[str, Any]:
        """One number."""
        return {"num_labels": 1}

    def supervised(self, example: Judged) -> None:
        """No token has a label of its own."""

    def collate(self, examples: Sequence[Judged], train: bool) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, 2, T)."""
        texts = both_texts(examples, self.vocabulary.pad_token_id or 0)
        return {name: texts[name] for name in ("input_ids", "attention_mask")}

    def rewards(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Numbers of both answers, (B, 2), fp32."""
        flat = {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask")}
        return classify(model, flat)[:, 0].float().view(-1, 2)

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """(sum over rows, their number)."""
        chosen, rejected = self.rewards(model, batch).unbind(1)
        return -nn.functional.logsigmoid(chosen - rejected).sum(), len(chosen)

    @torch.inference_mode()
    def predict(self, model: nn.Module, examples: Sequence[Judged], batch_size: int) -> list[tuple[float, float]]:
        """Numbers of both answers."""
        device, found = next(model.parameters()).device, list[tuple[float, float]]()
        for start in range(0, len(examples), batch_size):
            batch = self.collate(examples[start : start + batch_size], False)
            rewards = self.rewards(model, {name: tensor.to(device) for name, tensor in batch.items()})
            found += [(a, b) for a, b in rewards.tolist()]
        return found

    def score(self, examples: Sequence[Judged], predictions: Sequence[tuple[float, float]]) -> Scores:
        """accuracy, the share of rows whose chosen answer has the larger number, and margin, the mean lead; a tie is no
        win."""
        return self.scores_of([chosen - rejected for chosen, rejected in predictions])

    def new_form(self, *, perplexity: bool = False) -> Form:
        """Rows as in training."""
        refuse_perplexity(self.task_kind, perplexity)
        return Pairs()

    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """The number of each answer of a row, and which is the larger one."""
        examples = [example for row in rows for example in self.examples([row], row["where"])]
        found = self.predict(model, examples, batch_size)
        return [
            {"better": "chosen" if a > b else "rejected", "rewards": {"chosen": a, "rejected": b}} for a, b in found
        ]
