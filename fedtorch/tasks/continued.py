"""Tokens of rows that a decoder continues, and which of them are learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import nn

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.models.packing import looks_ahead
from fedtorch.models.padding import by_length
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.text_generation import IGNORED
from fedtorch.text.chat import ASSISTANT, supervised


@dataclass(frozen=True)
class Continued:
    """A tokenised row."""

    ids: list[int]
    """tokens of prompt and answer, or of a whole text"""
    is_learned: list[bool]
    """by token"""
    prompt: list[int]
    """what the last answer is generated from; empty where nothing is generated"""
    gold: str
    """the answer"""

    more: Sequence[Continued] = ()
    """of a conversation that its template cannot render as one text: those that end with an earlier answer"""
    choices: Sequence[Continued] = ()
    """the answers to choose from, where there are some"""
    right: int = 0
    """which of them it is"""

    @cached_property
    def learned(self) -> int:
        """tokens with a loss, those of `more` among them; a text's first one has none"""
        return sum(self.is_learned[1:]) + sum(other.learned for other in self.more)


class Prediction(NamedTuple):
    """Output of a model for a row."""

    log_likelihood: float
    """summed over its learned tokens"""
    tokens: int
    """their number"""
    choice: int = 0
    """which of its choices is the likeliest"""
    text: str = ""
    """what was generated"""


@dataclass(frozen=True)
class Tokens:
    """How rows become tokens."""

    task: OwnTask
    """which vocabulary, and where it cuts"""
    learns_all: bool
    """the tokens of prompts too"""
    keeps_prompt: bool
    """is the last answer to be generated as well"""

    def sample(self, row: Mapping[str, Any], where: str) -> Continued:
        """Sample of a prepared row. where: for messages.

        Raises:
            DataError: it is longer than it may be.
        """
        if "messages" in row:
            turns = supervised(self.task.vocabulary, row["messages"], row.get("tools"), where=where)
            gold = self._last_answer(row["messages"], *turns[-1])
            *more, last = [self.part(ids, mask, gold, where) for ids, mask in turns]
            return replace(last, more=more)
        if "text" in row:
            ids = [
                *self.task.vocabulary(row["text"], add_special_tokens=False).input_ids,
                self.task.vocabulary.eos_token_id,
            ]
            return self.part(ids, [True] * len(ids), "", where)
        if "choices" not in row:
            return self.part(*self.split(row["prompt"], row["completion"]), row["completion"], where)
        texts = []
        for answer in row["choices"]:
            ids, mask = self.split(row["prompt"], answer)
            if (len(ids) if self.task.truncate == "right" else sum(mask)) > self.task.max_length:
                raise DataError(
                    f"{where} has a row of {len(ids)} tokens with one of its choices, which would be cut to "
                    f"task.max_length {self.task.max_length} and look likely; raise it, or set task.truncate to left"
                )
            texts.append(self.part(ids, mask, answer, where))
        right = row["choices"].index(row["completion"])
        return replace(texts[right], choices=texts, right=right)

    def _last_answer(self, messages: Sequence[Mapping[str, Any]], ids: list[int], mask: list[bool]) -> str:
        """Last answer of the assistant: its content, or where it calls a tool all that the template makes of it."""
        last = next(message for message in reversed(messages) if message["role"] == ASSISTANT)
        if not last.get("tool_calls"):
            return str(last["content"])
        start = stop = len(mask) - mask[::-1].index(True)  # others may speak after it
        while start and mask[start - 1]:
            start -= 1
        return str(self.task.vocabulary.decode(ids[start:stop], skip_special_tokens=True))

    def split(self, prompt: str, completion: str) -> tuple[list[int], list[bool]]:
        """Tokens of both together with the end token, and which are the completion's: apart, the border is another."""
        found = self.task.vocabulary(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)
        mask = [stop > len(prompt) for _, stop in found.offset_mapping]
        return [*found.input_ids, self.task.vocabulary.eos_token_id], [*mask, True]

    def part(self, ids: list[int], mask: list[bool], gold: str, where: str) -> Continued:
        """As much of these tokens as `max_length` leaves. mask: which of them are an answer's."""
        kept = self.task.cut(ids, self.task.max_length, where)
        learned = mask[: self.task.max_length] if self.task.truncate != "left" else mask[-self.task.max_length :]
        starts = [i for i, is_answer in enumerate(learned) if is_answer and not (i and learned[i - 1])]
        prompt = kept[: starts[-1]] if starts else kept
        if self.learns_all:
            learned = [True] * len(kept)
        return Continued(kept, learned, prompt if self.keeps_prompt else [], gold)


def refuse_looking_ahead(model: nn.Module, name: str, most: int) -> None:
    """Try a model on a few tokens, at most `most`; name: of the model, for the message.

    Raises:
        ConfigError: what it foretells of a token depends on that or later ones.
    """
    if looks_ahead(model, min(6, most)):
        raise ConfigError(
            f"task.model is {name}, whose attention looks ahead at the tokens that are to be foretold; choose a "
            "decoder (gpt2, llama), or set task.model.is_decoder to true where the architecture has it (bert)"
        )


def log_likelihoods(
    model: nn.Module, texts: Sequence[Continued], batch_size: int, collate: Callable[..., Mapping[str, Any]]
) -> list[float]:
    """Summed over each text's learned tokens; texts of like length share a batch, which `collate` makes."""
    device, sums = next(model.parameters()).device, [0.0] * len(texts)
    for picked in by_length([len(text.ids) for text in texts], batch_size):
        alone = [replace(texts[i], more=()) for i in picked]
        batch = {k: v.to(device) for k, v in collate(alone, False).items()}
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
        labels = batch["labels"][:, 1:]
        each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        for i, total in zip(picked, each.cpu().double().sum(1).tolist(), strict=True):
            sums[i] = -total
    return sums
