"""Answers of a trained decoder to new rows: texts, choices, or how likely the rows are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn
from transformers import PreTrainedTokenizerBase

from fedtorch.tasks.continued import Continued, Tokens, log_likelihoods
from fedtorch.text.chat import asked


class Continues(Protocol):
    """A task whose model continues texts."""

    @property
    def max_length(self) -> int: ...  # noqa: D102
    @property
    def vocabulary(self) -> PreTrainedTokenizerBase: ...  # noqa: D102
    @property
    def tokens(self) -> Tokens: ...  # noqa: D102
    def cut(self, ids: Sequence[int], most: int, where: str) -> list[int]: ...  # noqa: D102
    def continued(self, model: nn.Module, prompts: Sequence[Sequence[int]], batch_size: int) -> list[str]: ...  # noqa: D102
    def collate(self, examples: Sequence[Continued], train: bool) -> dict[str, Any]: ...  # noqa: D102


def new_answers(
    task: Continues, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int
) -> list[dict[str, Any]]:
    """A row's generated text; its likeliest choice with the log-likelihood of each; or its perplexity.

    Perplexity is that of the learned tokens, with their log-likelihood and number; null where none is learned. The rows
    are all of one form, and have the place where they stand under `where`.
    """
    tokens = task.tokens
    if "source" in rows[0] or "conversation" in rows[0]:
        prompts = [task.cut(_prompt(task, row), task.max_length, row["where"]) for row in rows]
        return [{"text": text} for text in task.continued(model, prompts, batch_size)]
    if "choices" in rows[0] and "completion" not in rows[0]:
        samples = [tokens.sample({**row, "completion": row["choices"][0]}, row["where"]).choices for row in rows]
        sums = iter(log_likelihoods(model, [text for each in samples for text in each], batch_size, task.collate))
        return [_chosen(row["choices"], [next(sums) for _ in each]) for row, each in zip(rows, samples, strict=True)]
    found = [tokens.sample(row, row["where"]) for row in rows]
    sums = iter(log_likelihoods(model, [text for one in found for text in (one, *one.more)], batch_size, task.collate))
    return [_perplexity(math.fsum(next(sums) for _ in (one, *one.more)), one.learned) for one in found]


def _prompt(task: Continues, row: Mapping[str, Any]) -> list[int]:
    if "conversation" in row:
        return asked(task.vocabulary, row["conversation"], row.get("tools"))
    return list(task.vocabulary(row["source"], add_special_tokens=False).input_ids)


def _chosen(choices: Sequence[str], sums: Sequence[float]) -> dict[str, Any]:
    best = max(range(len(sums)), key=sums.__getitem__)
    return {"choice": choices[best], "number": best, "log_likelihoods": list(sums)}


def _perplexity(total: float, tokens: int) -> dict[str, Any]:
    figure = math.exp(min(700.0, -total / tokens)) if tokens else None
    return {"perplexity": figure, "log_likelihood": total, "tokens": tokens}
