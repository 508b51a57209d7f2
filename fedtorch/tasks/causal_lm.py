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
from fedtorch.models.auto import longest_input
from fedtorch.models.packing import packed, packed_logits, shared_rows, why_not_packed
from fedtorch.models.padding import pad
from fedtorch.tasks.base import Scores
from fedtorch.tasks.continued import Continued, Prediction, Tokens, log_likelihoods, refuse_looking_ahead
from fedtorch.tasks.conversations import Conversations, Unanswered, Unchosen
from fedtorch.tasks.new_answers import new_answers
from fedtorch.tasks.new_rows import NewPrompts
from fedtorch.tasks.text_generation import IGNORED, Metric, TextTask, token_loss
from fedtorch.text.chat import take_template

LOG_LIKELIHOOD, ACCURACY, CHOICES = "log_likelihood", "accuracy", "choices"
_MOST_UNSUPERVISED = 0.01


@dataclass(frozen=True, kw_only=True)
class CausalLM(TextTask):
    """Cross entropy over the tokens of answers, their end token among them, or of whole texts; perplexity is pooled."""

    head: ClassVar[Any] = "CausalLM"
    task_kind: ClassVar[str] = "causal_lm"
    built_in: ClassVar[Mapping[str, Any]] = {
        LOG_LIKELIHOOD: LOG_LIKELIHOOD,
        "perplexity": "perplexity",
        **TextTask.built_in,
    }
    lower_is_better: ClassVar[tuple[str, ...]] = ("perplexity",)

    rows_are: Literal["text", "completion", "choices", "messages"] = "completion"
    """plain text (column `text`); `prompt` and `completion`; the same and `choices`, a list of texts of which the
    completion is one, or the number of one from 0; or `messages`, lists of {role, content}"""
    loss_on: Literal["answer", "all"] = "answer"
    """the tokens that are learned: those of completions or of the assistant, or all"""
    chat_template: Path | None = None
    """a file with a chat template in place of the tokenizer's"""
    pack: bool = False
    """in training several texts share a row of up to `max_length` tokens, where that is less than padding; none sees
    another, so the loss is the same. Tried out at the start, and refused where the architecture cannot do it"""
    measures: tuple[Metric, ...] = ()
    """what is measured of generated answers, beside perplexity; none: nothing is generated"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows_are == "text" and (self.template is not None or self.measures):
            raise ConfigError("task.rows_are is text, which has no prompt: leave task.template and task.measures out")
        if self.rows_are == "messages" and self.template is not None:
            raise ConfigError("task.rows_are is messages, whose form is task.chat_template's; leave task.template out")

    @property
    def main_metric(self) -> str:  # type: ignore[override]  # a constant of most tasks
        """By what a row is: how many choices are right, or the likelihood of a token."""
        return ACCURACY if self.rows_are == CHOICES else LOG_LIKELIHOOD

    @property
    def tokens(self) -> Tokens:
        """How rows become tokens."""
        return Tokens(self, self.loss_on == "all", self.generates)

    def trained(self, folder: Path) -> Self:
        """With the chat template that lies beside the model."""
        return replace(super().trained(folder), chat_template=None)

    def new_form(self, *, perplexity: bool = False) -> Form:
        """As `rows_are` says, without an answer unless it is what is asked about."""
        columns = self.template_columns() if self.template else ["prompt"]
        if perplexity or self.rows_are == "text":
            return self.form()
        if self.rows_are == "messages":
            return Unanswered()
        if self.rows_are == CHOICES:
            return Unchosen([*columns, CHOICES], self.template)
        return NewPrompts(columns, self.template)

    @torch.inference_mode()
    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """Answer new rows by `new_answers`."""
        return new_answers(self, model, rows, batch_size)

    def build_model(self, seed: int) -> nn.Module:
        """The model; one that foretells tokens from those before them.

        Raises:
            ConfigError: it also sees those after them; or texts cannot share a row, and `pack` is set.
        """
        model, name = super().build_model(seed), self.source_model.named
        refuse_looking_ahead(model, name, self.max_length)
        if self.generates and self._room(model) < 1:
            raise ConfigError(
                f"task.generate.max_new_tokens is {self.generate.max_new_tokens} but {name} has "
                f"{longest_input(model)} positions for a prompt and its answer; lower it"
            )
        if self.pack and (why := why_not_packed(model, self.max_length)):
            raise ConfigError(f"task.pack is true but task.model is {name}: {why}; set task.pack to false")
        return model

    def form(self) -> Conversations:
        """As `rows_are` says."""
        if self.rows_are not in ("completion", CHOICES):
            return Conversations((self.rows_are,), None, ("tools",) if self.rows_are == "messages" else ())
        names = self.template_columns() if self.template else ["prompt"]
        more = [CHOICES] if self.rows_are == CHOICES else []
        return Conversations((*names, *more, "completion"), self.template)

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """By `rows_are`; a template is filled in already."""
        return (self.rows_are,) if self.rows_are in ("text", "messages") else ("prompt", "completion")

    def settings(self) -> dict[str, Any]:
        """Also the form of rows."""
        return {**super().settings(), "rows_are": self.rows_are}

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with the chat template that is to be used."""
        tokenizer = super().vocabulary
        if self.chat_template is not None:
            take_template(tokenizer, self.chat_template)
        if self.rows_are == "messages" and not tokenizer.chat_template:
            raise ConfigError(
                "task.rows_are is messages but the tokenizer has no chat template; give task.chat_template"
            )
        return tokenizer

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Continued]:
        """Tokens of every row, as `OwnTask` reads them."""
        return [self.tokens.sample(row, where) for row in rows]

    def refuse(self, examples: Sequence[Continued], where: str) -> None:
        """Where more than 1 % of them have no token to learn within `max_length`."""
        if (empty := self.unsupervised(examples)) > _MOST_UNSUPERVISED * len(examples):
            raise DataError(
                f"{where}: {empty} of {len(examples)} rows have no token to learn within task.max_length = "
                f"{self.max_length}; raise it, set task.truncate to left, or leave empty answers out"
            )

    def example_lengths(self, examples: Sequence[Continued]) -> list[tuple[int, ...]]:
        """Tokens of each, as if all its texts were as long as the longest."""
        return [((1 + len(one.more)) * max(len(text.ids) for text in (one, *one.more)),) for one in examples]

    def supervised(self, example: Continued) -> int:
        """Learned tokens but for a first one, which nothing foretells."""
        return example.learned

    def collate(self, examples: Sequence[Continued], train: bool) -> dict[str, Any]:
        """input_ids, attention_mask, labels (B, longest), int64; -100 is what is not learned. Or see `packed`."""
        texts = [text for example in examples for text in (example, *example.more)]
        labels = [
            [token if learned else IGNORED for token, learned in zip(text.ids, text.is_learned, strict=True)]
            for text in texts
        ]
        ids, pad_id = [text.ids for text in texts], self.vocabulary.pad_token_id
        rows = shared_rows(list(map(len, ids)), self.max_length) if train and self.pack else []
        if not rows:
            mask = pad([[1] * len(row) for row in ids], 0)
            return {"input_ids": pad(ids, pad_id), "attention_mask": mask, "labels": pad(labels, IGNORED)}
        joined = [[label for text in row for label in (IGNORED, *labels[text][1:])] for row in rows]
        return {**packed(ids, rows, pad_id), "labels": pad(joined, IGNORED)}

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """(sum over learned tokens, their number); the first token of a text has no loss."""
        if "segments" in batch:
            logits = packed_logits(model, batch)
        else:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            logits = model(**inputs, use_cache=False).logits
        return token_loss(logits[:, :-1], batch["labels"][:, 1:])

    def terms(self, batch: dict[str, Any]) -> int:
        """Learned tokens but for first ones."""
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    @torch.inference_mode()
    def predict(self, model: nn.Module, examples: Sequence[Continued], batch_size: int) -> list[Prediction]:
        """Likelihood of each row's learned tokens and of its choices, and the text that is generated."""
        texts = [text for example in examples for text in example.choices or (example, *example.more)]
        sums = iter(log_likelihoods(model, texts, batch_size, self.collate))
        found = []
        for example in examples:
            if not example.choices:
                total = math.fsum(next(sums) for _ in (example, *example.more))
                found.append(Prediction(total, example.learned))
                continue
            each = [next(sums) for _ in example.choices]
            best = max(range(len(each)), key=each.__getitem__)
            found.append(Prediction(each[example.right], example.learned, best))
        if self.generates:
            answers = self.continued(model, [example.prompt for example in examples], batch_size)
            found = [one._replace(text=answer) for one, answer in zip(found, answers, strict=True)]
        return found

    def continued(self, model: nn.Module, prompts: Sequence[Sequence[int]], batch_size: int) -> list[str]:
        """The text that is generated after each prompt, of which what leaves room for it is read."""
        room = self._room(model)
        ids = self.generated(model, [prompt[-room:] for prompt in prompts], batch_size, left=True)
        return [self.vocabulary.decode(row, skip_special_tokens=True) for row in ids]

    def _room(self, model: nn.Module) -> int:
        """Tokens of a prompt that leave places for an answer."""
        positions = longest_input(model)
        return self.max_length if positions is None else positions - self.generate.max_new_tokens

    def score(self, examples: Sequence[Continued], predictions: Sequence[Prediction]) -> Scores:
        """log_likelihood: a mean over tokens, from which perplexity is made; and what `measures` names.

        With choices also accuracy: the right one is the likeliest, by the sum over its tokens with its end token.
        """
        tokens = sum(found.tokens for found in predictions)
        total = math.fsum(found.log_likelihood for found in predictions)
        scores: Scores = {}
        if self.rows_are == CHOICES:
            hits = sum(found.choice == example.right for example, found in zip(examples, predictions, strict=True))
            scores[ACCURACY] = (float(hits), len(examples))
        scores[LOG_LIKELIHOOD] = (total, tokens)
        if self.asked:
            texts = [found.text for found in predictions]
            scores |= self.text_scores(texts, [example.gold for example in examples])
        return {**scores, f"{COUNT}tokens": (float(tokens), tokens), f"{COUNT}nll": (-total, tokens)}

    def metrics(self) -> tuple[str, ...]:
        """Accuracy of choices, log_likelihood, and means of what is generated."""
        return tuple(dict.fromkeys((*self._of_choices, LOG_LIKELIHOOD, *super().metrics())))

    @property
    def generates(self) -> bool:
        """Are answers generated to be evaluated?"""
        return bool(self.asked) or any(not isinstance(metric, str) for metric in self.chosen.values())

    def known_metrics(self) -> Mapping[str, Any]:
        """Metrics that can be asked for: of plain text only those of its likelihood; of choices also their accuracy."""
        known = {n: v for n, v in self.built_in.items() if self.rows_are != "text" or n not in TextTask.built_in}
        return known | dict(zip(self._of_choices, self._of_choices, strict=True))

    def with_metrics(self, chosen: Mapping[str, Any]) -> Self:
        """Accept metrics of one's own, for which there are answers.

        Raises:
            ConfigError: there are none.
        """
        task = super().with_metrics(chosen)
        if task.generates and self.rows_are == "text":
            raise ConfigError(
                "task.rows_are is text, which has no answers that eval.metrics could compare; set it to completion or "
                "messages, or take perplexity"
            )
        return task

    def compared(self, examples: Sequence[Continued], predictions: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Texts."""
        return [found.text for found in predictions], [example.gold for example in examples]

    def single_metrics(self) -> tuple[str, ...]:
        """Those of choices and of generated texts; a row has many tokens."""
        return (*self._of_choices, *super().single_metrics())

    @property
    def _of_choices(self) -> tuple[str, ...]:
        return (ACCURACY,) if self.rows_are == CHOICES else ()

    def figures(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Also perplexity, exp(Σ nll / Σ tokens)."""
        tokens = totals.get(f"{COUNT}tokens", 0.0)
        found = {"perplexity": math.exp(min(700.0, totals[f"{COUNT}nll"] / tokens))} if tokens else {}
        return {**found, **super().figures(totals)}

    def texts_read(self, row: Mapping[str, Any]) -> list[str]:
        """With the right answer alone."""
        return super().texts_read({name: text for name, text in row.items() if name != CHOICES})

    def unsupervised(self, examples: Sequence[Continued]) -> int:
        """Those none of whose tokens is learned within `max_length`."""
        return sum(not example.learned for example in examples)
