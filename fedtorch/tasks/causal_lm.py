"""Texts that a decoder continues: plain text, prompts and their completions, or conversations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Self

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.scores import COUNT
from fedtorch.data.own.rows import Form
from fedtorch.models.padding import by_length, pad
from fedtorch.tasks.base import Scores
from fedtorch.tasks.conversations import Conversations, Unanswered
from fedtorch.tasks.new_rows import NewPrompts
from fedtorch.tasks.text_generation import IGNORED, Metric, TextTask, token_loss
from fedtorch.text.chat import asked, supervised

LOG_LIKELIHOOD = "log_likelihood"
_MOST_UNSUPERVISED = 0.01


@dataclass(frozen=True)
class Continued:
    """A tokenised row."""

    ids: list[int]
    is_learned: list[bool]
    """by token"""
    prompt: list[int]
    """what an answer is generated from; empty where nothing is generated"""
    gold: str
    """the answer"""


@dataclass(frozen=True, kw_only=True)
class CausalLM(TextTask):
    """Cross entropy over the tokens of answers, their end token among them, or of whole texts; perplexity is pooled."""

    main_metric: ClassVar[str] = LOG_LIKELIHOOD
    head: ClassVar[Any] = "CausalLM"
    kind: ClassVar[str] = "causal_lm"

    rows_are: Literal["text", "completion", "messages"] = "completion"
    """plain text (column `text`); `prompt` and `completion`; or `messages`, lists of {role, content}"""
    loss_on: Literal["answer", "all"] = "answer"
    """the tokens that are learned: those of completions or of the assistant, or all"""
    chat_template: Path | None = None
    """a file with a chat template in place of the tokenizer's"""
    measures: tuple[Metric, ...] = ()
    """what is measured of generated answers, beside perplexity; none: nothing is generated"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows_are == "text" and (self.template is not None or self.measures):
            raise ConfigError("task.rows_are is text, which has no prompt: leave task.template and task.measures out")
        if self.rows_are == "messages" and self.template is not None:
            raise ConfigError("task.rows_are is messages, whose form is task.chat_template's; leave task.template out")

    def form(self) -> Conversations:
        """As `rows_are` says."""
        if self.rows_are != "completion":
            return Conversations((self.rows_are,), None)
        names = self.template_columns() if self.template else ["prompt"]
        return Conversations((*names, "completion"), self.template)

    def settings(self) -> dict[str, Any]:
        """Also the form of rows."""
        return {**super().settings(), "rows_are": self.rows_are}

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with the chat template that is to be used."""
        tokenizer = super().vocabulary
        if self.chat_template is not None:
            try:
                tokenizer.chat_template = Path(self.chat_template).read_text()
            except OSError as error:
                raise ConfigError(f"task.chat_template: {self.chat_template} cannot be read ({error})") from None
        if self.rows_are == "messages" and not tokenizer.chat_template:
            raise ConfigError(
                "task.rows_are is messages but the tokenizer has no chat template; give task.chat_template"
            )
        return tokenizer

    def load(self, client: str, split: str) -> list[Continued]:
        """Tokenised rows of one client; of a conversation several where its template cannot render it as one.

        Raises:
            DataError: more than 1 % of the rows have no token to learn within `max_length`.
        """
        rows, where = self.rows(client, split), f"{split} of client {client}"
        found = [sample for row in rows for sample in self._samples(row, where)]
        if empty := sum(not any(sample.is_learned[1:]) for sample in found):
            if empty > _MOST_UNSUPERVISED * len(found):
                raise DataError(
                    f"{where}: {empty} of {len(found)} rows have no token to learn within task.max_length = "
                    f"{self.max_length}; raise it, set task.truncate to left, or leave empty answers out"
                )
        return found

    def collate(self, examples: Sequence[Continued], train: bool) -> dict[str, Any]:
        """input_ids, attention_mask, labels (B, longest), int64; -100 is what is not learned."""
        labels = [
            [token if learned else IGNORED for token, learned in zip(example.ids, example.is_learned, strict=True)]
            for example in examples
        ]
        return {
            "input_ids": pad([example.ids for example in examples], self.vocabulary.pad_token_id),
            "attention_mask": pad([[1] * len(example.ids) for example in examples], 0),
            "labels": pad(labels, IGNORED),
        }

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """(sum over learned tokens, their number); the first token of a text has no loss."""
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
        return token_loss(logits[:, :-1], batch["labels"][:, 1:])

    @torch.inference_mode()
    def predict(self, model: nn.Module, examples: Sequence[Continued], batch_size: int) -> list[Any]:
        """(log-likelihood of the learned tokens, their number, generated text) of each row."""
        sums, texts = self._likelihoods(model, examples, batch_size), [""] * len(examples)
        if self.measures:
            texts = self._continued(model, [example.prompt for example in examples], batch_size)
        return [(*pair, text) for pair, text in zip(sums, texts, strict=True)]

    def _continued(self, model: nn.Module, prompts: Sequence[list[int]], batch_size: int) -> list[str]:
        ids = self.generated(model, prompts, batch_size, left=True)
        return [self.vocabulary.decode(row, skip_special_tokens=True) for row in ids]

    def _likelihoods(self, model: nn.Module, examples: Sequence[Continued], size: int) -> list[tuple[float, int]]:
        device = next(model.parameters()).device
        sums: list[tuple[float, int]] = [(0.0, 0)] * len(examples)
        for picked in by_length([len(example.ids) for example in examples], size):
            batch = {k: v.to(device) for k, v in self.collate([examples[i] for i in picked], False).items()}
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
            labels = batch["labels"][:, 1:]
            each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
            counts = (labels != IGNORED).sum(1).tolist()
            for i, total, count in zip(picked, each.double().sum(1).tolist(), counts, strict=True):
                sums[i] = (-total, count)
        return sums

    def trained(self, folder: Path) -> Self:
        """With the chat template that lies beside the model."""
        return replace(super().trained(folder), chat_template=None)

    def new_form(self, *, perplexity: bool = False) -> Form:
        """As `rows_are` says, without an answer unless it is what is asked about."""
        if perplexity or self.rows_are == "text":
            return self.form()
        if self.rows_are == "messages":
            return Unanswered()
        return NewPrompts(self.template_columns() if self.template else ["prompt"], self.template)

    @torch.inference_mode()
    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """The generated text; or perplexity, from the log-likelihood of so many tokens, null where none is learned."""
        if "source" in rows[0] or "conversation" in rows[0]:
            prompts = [self.cut(self._asked(row), self.max_length, row["where"]) for row in rows]
            return [{"text": text} for text in self._continued(model, prompts, batch_size)]
        samples = [self._samples(row, row["where"]) for row in rows]
        sums = iter(self._likelihoods(model, [sample for own in samples for sample in own], batch_size))
        return [_perplexity([next(sums) for _ in own]) for own in samples]

    def _asked(self, row: Mapping[str, Any]) -> list[int]:
        if "conversation" in row:
            return asked(self.vocabulary, row["conversation"])
        return list(self.vocabulary(row["source"], add_special_tokens=False).input_ids)

    def score(self, examples: Sequence[Continued], predictions: Sequence[Any]) -> Scores:
        """log_likelihood: a mean over tokens, from which perplexity is made; and what `measures` names."""
        tokens = sum(count for _, count, _ in predictions)
        total = math.fsum(value for value, _, _ in predictions)
        scores: Scores = {LOG_LIKELIHOOD: (total, tokens)}
        if self.measures:
            texts = [text for _, _, text in predictions]
            scores |= self.text_scores(texts, [example.gold for example in examples])
        return {**scores, f"{COUNT}tokens": (float(tokens), tokens), f"{COUNT}nll": (-total, tokens)}

    def metrics(self) -> tuple[str, ...]:
        """log_likelihood, and means of what is generated."""
        return (LOG_LIKELIHOOD, *super().metrics())

    def single_metrics(self) -> tuple[str, ...]:
        """Those of generated texts; a row has many tokens."""
        return super().metrics()

    def figures(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Also perplexity, exp(Σ nll / Σ tokens)."""
        tokens = totals.get(f"{COUNT}tokens", 0.0)
        found = {"perplexity": math.exp(min(700.0, totals[f"{COUNT}nll"] / tokens))} if tokens else {}
        return {**found, **super().figures(totals)}

    def _samples(self, row: Mapping[str, Any], where: str) -> list[Continued]:
        end = self.vocabulary.eos_token_id
        if "messages" in row:
            turns = supervised(self.vocabulary, row["messages"])
            golds = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
            golds = golds[-len(turns) :]  # one sample for all turns, or one each
            return [self._sample(ids, mask, gold, where) for (ids, mask), gold in zip(turns, golds, strict=True)]
        if "text" in row:
            ids = [*self.vocabulary(row["text"], add_special_tokens=False).input_ids, end]
            return [self._sample(ids, [True] * len(ids), "", where)]
        ids, mask = self._split(row["prompt"], row["completion"])
        return [self._sample([*ids, end], [*mask, True], row["completion"], where)]

    def _split(self, prompt: str, completion: str) -> tuple[list[int], list[bool]]:
        """Tokens of both together, and which of them are the completion's: apart, the border would be cut otherwise."""
        found = self.vocabulary(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)
        return list(found.input_ids), [stop > len(prompt) for _, stop in found.offset_mapping]

    def _sample(self, ids: list[int], mask: list[bool], gold: str, where: str) -> Continued:
        kept = self.cut(ids, self.max_length, where)
        learned = mask[: self.max_length] if self.truncate != "left" else mask[-self.max_length :]
        begins = [i for i, answers in enumerate(learned) if answers and not (i and learned[i - 1])]
        prompt = kept[: begins[-1]] if begins else kept  # of several answers the last one is asked for
        if self.loss_on == "all":
            learned = [True] * len(kept)
        return Continued(kept, learned, prompt if self.measures else [], gold)


def _perplexity(sums: Sequence[tuple[float, int]]) -> dict[str, Any]:
    total, tokens = math.fsum(value for value, _ in sums), sum(count for _, count in sums)
    figure = math.exp(min(700.0, -total / tokens)) if tokens else None
    return {"perplexity": figure, "log_likelihood": total, "tokens": tokens}
