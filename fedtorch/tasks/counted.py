"""A task of one's own data whose rows are counted, and from which nothing is learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.keys import SPLITS
from fedtorch.data.own.rows import content_digest
from fedtorch.stats.counting import CountedRow
from fedtorch.stats.questions import DIGESTS, RECUR, CountPlan, Question, TaskFacts, questions_of
from fedtorch.stats.recurring import NUMBERS, check_rows, pairs, read_key
from fedtorch.stats.settings import LISTED, PersonUnit, Recur, StatsConfig
from fedtorch.tasks.base import Task
from fedtorch.tasks.causal_lm import CausalLM
from fedtorch.tasks.judged_task import JudgedTask
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.own_overview import lengths_of_texts
from fedtorch.tasks.text_classification import TextClassification
from fedtorch.tasks.token_classification import TokenClassification
from fedtorch.text.pretrained import tokenizer_digest

ROLES = ("system", "user", "assistant", "tool")
NO_TOKENIZER = "none"
"""In place of a tokenizer's name in a task whose tokens are not counted, so that none is trained on its rows."""


@dataclass(frozen=True)
class Counted(Task):
    """Rows of another task, with a model that has nothing to learn."""

    rows_of: OwnTask
    """the task as it was"""
    recur: Recur | None = None
    """how rows are compared with those of other silos; None: they are not"""
    tells_digest: bool = True
    """may others know a digest of the rows, by which a run that goes on notices other ones?"""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Clients with rows in any split, each as one example: how many it has is what is to be counted."""
        found = self.rows_of.manifest()
        return {name: {"train": 1} for name, sizes in found.items() if any(sizes.values())}

    def check(self, client: str) -> str | None:
        """Check that rows can be compared, where they are to be.

        Raises:
            CheckpointError, ConfigError: the key is not there, others may read it, or it is none.
            DataError: the client has too many rows.
        """
        if self.recur is not None:
            read_key(self.recur.key)
            check_rows(len({row.digest for row in self.load(client, "train")}), self.recur.rows, client)
        return None

    def load(self, client: str, split: str) -> Sequence[CountedRow]:
        """All rows of a client's own splits; splits that clients share count nobody's rows.

        split: not looked at.
        """
        rows = [(name, row) for name in self._splits(client) for row in self._here.rows(client, name)]
        there = [row for _, row in rows]
        lengths = lengths_of_texts(self.rows_of, there) if has_tokens(self.rows_of) else [None] * len(rows)
        return [self._row(name, row, length) for (name, row), length in zip(rows, lengths, strict=True)]

    def persons(self, client: str, split: str = "train") -> list[str]:
        """Which person each row of `load` is about."""
        return [person for name in self._splits(client) for person in self._here.persons(client, name)]

    @cached_property
    def _here(self) -> OwnTask:
        """The task with what is on this disk, where ranks have told each other of it less than that."""
        return replace(self.rows_of)

    def _splits(self, client: str) -> list[str]:
        """Splits in which the client has rows of its own."""
        there = self._here.manifest()[client]
        return [name for name in SPLITS if name in there and client not in self._here.sharing(name)]

    def build_model(self, seed: int) -> nn.Module:
        """One number, which nobody trains."""
        return _Nothing()

    def facts(self) -> dict[str, str]:
        """Digest of the tokenizer, which all silos must have the same, and of the rows, if that may be told."""
        facts = {"data": self.rows_of.data_digest()} if self.tells_digest else {}
        if has_tokens(self.rows_of):
            facts["tokenizer of stats"] = tokenizer_digest(self.rows_of.vocabulary)
        return facts

    def _row(self, split: str, row: Mapping[str, Any], tokens: int | None) -> CountedRow:
        task = self.rows_of
        texts, label = tuple(task.form().texts(row)), task.label_of(row)
        labels = () if label is None else tuple(map(str, label)) if isinstance(label, list) else (str(label),)
        sides = tuple((side, characters(row[side])) for side in ("chosen", "rejected") if side in row)
        roles = tuple(str(message.get("role")) for message in row.get("messages", ()))
        is_empty = not any(letter.isalnum() for text in texts for letter in text)
        return CountedRow(split, content_digest(texts), texts, labels, tokens, is_empty, roles, sides)


class _Nothing(nn.Module):
    """A model in name."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))


def has_tokens(task: OwnTask) -> bool:
    """Has it a tokenizer to count with?"""
    return task.tokenizer != NO_TOKENIZER


def characters(said: Any) -> int:
    """Characters of a text, or of all messages."""
    if isinstance(said, str):
        return len(said)
    return sum(len(str(message.get("content") or "")) for message in said)


def facts_of(task: OwnTask, max_lengths: Sequence[int]) -> TaskFacts:
    """Facts that decide what is asked. max_lengths: further ones, beside the task's own."""
    table = ("entities", "kinds of spans") if isinstance(task, TokenClassification) else ("labels", "labels")
    is_judged = isinstance(task, JudgedTask)
    has_verdicts = isinstance(task, JudgedTask) and task.has_verdicts
    messages = isinstance(task, CausalLM) and task.rows_are == "messages"
    declared = ("undesirable", "desirable") if has_verdicts else tuple(task.data.labels)
    return TaskFacts(
        label_table=table if task.has_labels or has_verdicts else None,
        labels=declared,
        one_label=isinstance(task, TextClassification) and task.problem == "single_label",
        roles=ROLES if messages else (),
        sides=("chosen", "rejected") if is_judged and not has_verdicts else (),
        tokens=has_tokens(task),
        max_lengths=tuple(sorted({*max_lengths, task.max_length})),
    )


def as_counted(task: object, name: str, settings: StatsConfig) -> OwnTask:
    """The task as its rows are counted: with the tokenizer of `stats`, or with none.

    The same for one that is so already.

    Raises:
        ConfigError: its rows are none of one's own.
    """
    if not isinstance(task, OwnTask):
        raise ConfigError(
            f"task.name is {name}, whose data `fedtorch data prepare` has counted; `fedtorch stats` is for tasks with "
            "task.data.source, such as text_classification"
        )
    unit = settings.privacy.unit if settings.privacy is not None else "row"
    if isinstance(unit, PersonUnit):
        task = task.with_persons(unit.column)
    tokenizer = settings.tokenizer or task.tokenizer
    if tokenizer is None:
        tokenizer = task.source_model.path or NO_TOKENIZER
    changes: dict[str, Any] = {} if tokenizer == task.tokenizer else {"tokenizer": tokenizer}
    if getattr(task, "class_weights", None) == "balanced":
        changes["class_weights"] = None
    return replace(task, **changes) if changes else task


def plan_of(task: OwnTask, clients: Sequence[str], settings: StatsConfig, *, hides: bool) -> CountPlan:
    """Where each number is. hides: do masks hide silos' numbers?

    Raises:
        ConfigError: each silo's numbers are asked for, and hidden.
    """
    if hides and settings.recur is not None:
        raise ConfigError(
            "stats.recur is set but privacy.secure_sum is too, under whose masks nothing can be compared; set one of "
            "them back"
        )
    if hides and settings.by_silo is True:
        raise ConfigError(
            "stats.by_silo is true but privacy.secure_sum is set, which hides what each silo sends; set one of them "
            "back"
        )
    by_silo = not hides and (len(clients) <= LISTED if settings.by_silo == "auto" else settings.by_silo)
    questions = questions_of(settings, facts_of(task, settings.max_lengths))
    if settings.recur is not None:
        questions += (
            Question(RECUR, "rows that two silos have", cells=pairs(clients), is_shared=True),
            Question(DIGESTS, "digests of rows", numbers=NUMBERS * settings.recur.rows),
        )
    return CountPlan(tuple(clients), questions, by_silo)
