"""Common part of tasks over data of one's own: rows of any source, a tokenizer, and any model of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from torch import nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Self

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.model_folder import config_file
from fedtorch.core.ranges import Count
from fedtorch.core.update import SIZE
from fedtorch.data.own.keys import OwnData
from fedtorch.data.own.persons import OfPersons
from fedtorch.data.own.prepare import prepare
from fedtorch.data.own.prepared_folder import folder_for, name_of_rows
from fedtorch.data.own.rows import PERSON, Form
from fedtorch.models.adapters.lora import has_adapter
from fedtorch.models.adapters.saved import base_digests, bases_elsewhere, save_adapted, saved_keys
from fedtorch.models.auto import AnyModel, Head, longest_input
from fedtorch.models.pretrained import save_model, save_tokenizer
from fedtorch.tasks.base import Scores
from fedtorch.tasks.chosen_metrics import code_of, pooled, pooled_of, scores_of, selectable
from fedtorch.tasks.copies import copy_as
from fedtorch.tasks.own_usage import usage
from fedtorch.tasks.prepared import SILOS, InFolder
from fedtorch.tasks.public_rows import fit_to_public_rows
from fedtorch.tasks.shared_splits import shared_files
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.text.pretrained import lacks, load_tokenizer_as, tokenizer_digest

ALL = ""
"""In place of a client's name where a draw is one for all."""
LABELLED_CLIENTS = 400
"""With more clients than this their labels are not recorded."""


@dataclass(frozen=True, kw_only=True)
class OwnTask(InFolder):
    """A task over rows of any source and any model of transformers; a subclass says what a row is and how it counts."""

    head: ClassVar[Head]
    """of the model"""
    task_kind: ClassVar[str]
    """its name in a config"""
    takes_metrics: ClassVar[bool] = True
    lower_is_better: ClassVar[tuple[str, ...]] = ()
    """those of `figures` that no best model is chosen by"""

    data: OwnData
    """where the rows are, what their columns mean and whose they are"""
    model: Annotated[Mapping[str, Any], AnyModel.one_of]
    """`{path: FOLDER_OR_NAME}`, or `{random: KIND, ...}` with fields of its configuration"""
    tokenizer: str | None = None
    """folder or name of the tokenizer; null: the model's, of a random model one trained on the training texts"""
    max_length: Count = 512
    """tokens of the longest input"""
    truncate: Literal["right", "left", "refuse"] = "right"
    """where a longer text is cut, or that it is an error"""

    client_weight: Literal["examples", "tokens"] = "examples"
    """what a client's part in the average is by: its training rows, or the tokens in them that are learned"""

    def __post_init__(self) -> None:
        self.source_model  # noqa: B018  # refuses what is no model
        if self.data.splits.stratify and not self.has_labels:
            raise ConfigError("task.data.splits.stratify is true, but the rows of this task have no labels; set false")

    @property
    def cuts(self) -> bool:
        """Is a text beyond `max_length` cut?"""
        return True

    def form(self) -> Form:
        """Columns that a row must have."""
        raise NotImplementedError

    def kept_form(self) -> Form:
        """Columns that a prepared row keeps: those of `form`, and the person where one is asked for."""
        return self.form() if self.data.person is None else OfPersons(self.form())

    def with_persons(self, column: str) -> Self:
        """This task with the column that says which person a row is about."""
        # itself where it has the column already: what is cached, and what ranks have told each other, stays
        return self if self.data.person == column else replace(self, data=replace(self.data, person=column))

    def persons(self, client: str, split: str = "train") -> list[str]:
        """Which person each row of a split is about.

        Raises:
            ConfigError: the split is a file without the column.
        """
        rows = self.rows(client, split)
        if any(PERSON not in row for row in rows):
            raise ConfigError(f"rows of {split} have no column {self.data.person!r}, which privacy.unit.column names")
        return [str(row[PERSON]) for row in rows]

    def label_of(self, row: Mapping[str, Any]) -> Any:
        """The label of a converted row, for rules that look at labels; None where there is none."""
        return None

    @property
    def has_labels(self) -> bool:
        """Is what is predicted one of a few labels?"""
        return False

    def settings(self) -> dict[str, Any]:
        """Settings beside `data` that decide about the prepared rows."""
        return {"task": self.task_kind, "labels": list(self.data.labels)}

    @cached_property
    def source_model(self) -> AnyModel:
        """Model that `model` names."""
        return AnyModel.of(self.model)

    @cached_property
    def folder(self) -> Path:
        """The prepared rows; made on first use, below data/, and again when a file or a setting changes."""
        return folder_for(self.data, self.task_kind, self._row_settings(), self.prepare_into)

    @property
    def ledgers(self) -> Path:
        """One folder for the rows, whatever labels are declared, and whoever is the unit."""
        return self.folder.resolve().with_name(name_of_rows(self.data, self.task_kind, self.folder) + SILOS)

    def prepare_into(self, folder: Path) -> list[int]:
        """Write the prepared rows, and the vocabulary of a random model; how many rows each client has."""
        settings = self._row_settings()
        train = partial(train_subwords, size=self.data.tokenizer_size) if settings["vocabulary"] else None
        return prepare(
            folder, self.task_kind, self.data, self.kept_form(), label_of=self.label_of, train=train, settings=settings
        )

    def _row_settings(self) -> dict[str, Any]:
        return {**self.settings(), "vocabulary": self.source_model.random is not None and self.tokenizer is None}

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer; one without a padding token pads with its end token, which attention masks tell apart."""
        model = self.source_model
        key, name = ("task.tokenizer", self.tokenizer) if self.tokenizer else ("task.model.path", model.path)
        tokenizer = load_tokenizer_as(
            "model's", name or self.folder / "tokenizer", lacks, key=key, allows_code=model.allow_code
        )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def build_model(self, seed: int) -> nn.Module:
        """The model with its head, in fp32."""
        model = self.source_model.build(self.head, seed, self.vocabulary, **self.head_settings())
        positions = longest_input(model)
        if positions is not None and positions < self.max_length:
            raise ConfigError(
                f"task.max_length is {self.max_length} but {self.source_model.named} has {positions} positions; "
                "lower task.max_length"
            )
        if (adapter := self.source_model.adapter) is not None and adapter.public_rows is not None:
            fit_to_public_rows(self, model, adapter.public_rows)
        return model

    def head_settings(self) -> dict[str, Any]:
        """Fields of the model's configuration that the data decide."""
        return {}

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """`save_pretrained` of model and tokenizer; an adapter alone."""
        (save_adapted if has_adapter(model) else save_model)(model, folder)
        save_tokenizer(self.vocabulary, folder)

    def unsaved(self, model: nn.Module) -> list[str]:
        """An adapter's base."""
        return bases_elsewhere(model)

    def usage(self) -> Mapping[str, str]:
        """By the head; see `own_usage`."""
        return usage(self.head, self.source_model)

    def usage_merged(self) -> Mapping[str, str]:
        """Lines that load the model without an adapter."""
        return usage(self.head, replace(self.source_model, adapter=None, quantize=None))

    def record(self) -> dict[str, Any]:
        """How the data were made, and which client has how many rows of which label."""
        found = {"data": self.prepared.get("record", {}), "vocabulary": len(self.vocabulary)}
        labels = {name: entry["labels"] for name, entry in self.prepared["clients"].items() if entry.get("labels")}
        return found | ({"labels": labels} if 0 < len(labels) <= LABELLED_CLIENTS else {})

    def public_record(self) -> dict[str, Any]:
        """By which keys the data were made."""
        made = self.prepared.get("record", {})
        data = {key: made[key] for key in ("options", "settings") if key in made}
        return {"data": data, "vocabulary": len(self.vocabulary)}

    def trained(self, folder: Path) -> Self:
        """This task with the model, tokenizer and labels that a run has written into `folder`; its data are not read.

        Raises:
            ConfigError: there is no model.
        """
        try:
            named = json.loads(config_file(folder).read_bytes()).get("id2label") or {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} has no model that can be read ({type(error).__name__})") from None
        labels = self.labels_named(tuple(named[number] for number in sorted(named, key=int)))
        model = {**saved_keys(folder, self.source_model.path), "allow_code": self.source_model.allow_code}
        tokenizer = str(folder) if "adapter" in model else None
        return replace(self, model=model, tokenizer=tokenizer, data=replace(self.data, labels=labels))

    def labels_named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """`data.labels` of a task whose model calls what it can answer so, in the order of its numbers."""
        return names

    def new_form(self, *, perplexity: bool = False) -> Form:
        """Form of a row that is to be answered. perplexity: of given texts, in place of an answer.

        Raises:
            ConfigError: the task has no perplexity.
        """
        raise NotImplementedError

    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """Answers of a model in eval mode to rows in the form of `new_form`: plain JSON for each, in their order."""
        raise NotImplementedError

    def supervised(self, example: Any) -> int | None:
        """Tokens of an example that are learned; None where it is not tokens that have labels."""
        return None

    def counts(self, examples: Sequence[Any]) -> dict[str, float]:
        """`tokens` that are learned, and whether they are the client's size."""
        found = [self.supervised(example) for example in examples]
        if None in found or not found:
            return {}
        tokens = float(sum(count or 0 for count in found))
        return {"tokens": tokens, **({SIZE: tokens} if self.client_weight == "tokens" else {})}

    def largest_size(self, examples: int) -> float:
        """As many tokens as a row can have."""
        return examples * (self.max_learned if self.client_weight == "tokens" else 1)

    @property
    def max_learned(self) -> int:
        """Tokens of a row that can be learned."""
        return self.max_length

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """Columns that every row has."""
        return tuple(self.form().required)

    def raw_rows(self, client: str, split: str) -> list[dict[str, Any]]:
        """Rows by column, as the task reads them before they become tokens."""
        return self.rows(client, split)

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Manifest of the prepared data; None where there is none.

        Raises:
            ConfigError: a client is held out that is not there.
        """
        clients = super().manifest()
        if unknown := [client for client in self.data.splits.held_out if client not in clients]:
            raise ConfigError(
                f"task.data.splits.held_out names {unknown[0]!r}, who is no client; there are "
                f"{', '.join(list(clients)[:10])}"
            )
        return clients

    def sharing(self, split: str) -> frozenset[str]:
        """All clients that are not held out, where the split is a file that was not dealt to them; else none."""
        return self._sharing.get(split, frozenset())

    @cached_property
    def _sharing(self) -> dict[str, frozenset[str]]:
        return shared_files(self.prepared["clients"], self.data.splits)

    def picked(self, client: str, split: str, available: int) -> list[int]:
        """The rows that are used; of those that clients share the same for all of them."""
        return super().picked(ALL if client in self.sharing(split) else client, split, available)

    def pinned_problem(self, *, learns: bool = True) -> str:
        """Reason why the data cannot be pinned; empty where it can."""
        rule = self.data.clients
        if rule.by is None:
            return (
                f"task.data.clients.{rule.rule} deals rows that are all in one place; say whose they are with "
                "`by: COLUMN` or `by: file`"
            )
        if self.source_model.random is not None and self.tokenizer is None:
            return "every rank would train a vocabulary on its own texts; name one for all with task.tokenizer"
        if learns and self.has_labels and not self.data.labels:
            return "no rank sees all labels; declare them in task.data.labels"
        return ""

    def facts(self) -> dict[str, str]:
        """Digests of the clients' rows, of the tokenizer, wherever that lies, and of the files of chosen metrics."""
        facts = {"data": self.data_digest(), "vocabulary": tokenizer_digest(self.vocabulary)}
        return facts | self._base_digests | ({"metrics": code} if (code := code_of(self.chosen)) else {})

    @cached_property
    def _base_digests(self) -> dict[str, str]:
        """Digests of an adapter's base, by file."""
        model = self.source_model
        return base_digests(model.path) if model.adapter is not None and model.path else {}

    def load(self, client: str, split: str) -> list[Any]:
        """Tokenised rows of one client."""
        rows, where = self.rows(client, split), f"{split} of client {client}"
        examples = self.examples(rows, where) if rows else []
        self.refuse(examples, where)
        return examples

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Any]:
        """Prepared rows as they are collated, one example each; there are some. where: for messages.

        Raises:
            DataError: training would refuse one of them.
        """
        raise NotImplementedError

    def refuse(self, examples: Sequence[Any], where: str) -> None:
        """Raises DataError if training cannot do with these examples together; where: for messages."""

    def read_lengths(self, examples: Sequence[Any]) -> Sequence[tuple[int, ...]]:
        """Tokens of each example as `data check` counts them: of what `texts_read` names."""
        return self.example_lengths(examples)

    @property
    def longest(self) -> tuple[int, ...]:
        """The most tokens that each of an example's `read_lengths` can have; one that has so many may be cut."""
        return (self.max_length,)

    def texts_read(self, row: Mapping[str, Any]) -> list[str]:
        """The texts of a prepared row that are read together."""
        return list(self.form().texts(row))

    def unsupervised(self, examples: Sequence[Any]) -> int:
        """How many of some examples have nothing to learn from; every row has its label by default."""
        return 0

    def cut(self, ids: Sequence[int], most: int, where: str) -> list[int]:
        """At most `most` ids, as `truncate` says.

        Raises:
            DataError: there are more, and `truncate` is `refuse`.
        """
        if len(ids) <= most:
            return list(ids)
        if self.truncate == "refuse":
            raise DataError(
                f"{where} has a row of {len(ids)} tokens, task.max_length leaves {most}; raise it, or set task.truncate"
            )
        return list(ids[:most] if self.truncate == "right" else ids[-most:])

    def with_metrics(self, chosen: Mapping[str, Any]) -> Self:
        """A copy that keeps what this one has read."""
        if not chosen:
            return self
        return copy_as(type(self), self, chosen=dict(chosen))

    def metrics(self) -> tuple[str, ...]:
        """Metrics that a best model can be chosen by."""
        return tuple(dict.fromkeys((self.main_metric, *selectable(self.chosen, self.lower_is_better))))

    def single_metrics(self) -> tuple[str, ...]:
        """Only the main one; figures of several rows are no means."""
        return (self.main_metric,)

    def figures(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Figures that are no means, from sums of scores by name."""
        return {}

    def summary(self, scores: Mapping[str, Scores]) -> dict[str, Any]:
        """`figures` of all rows together, and of each client's; nothing where nobody was evaluated."""
        if not scores:
            return {}
        each = {client: self.figures(pooled({client: found})) for client, found in scores.items()}
        return {"pooled": self.figures(pooled(scores)), "clients": each}

    def compared(self, examples: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(predictions, references) as a metric of one's own gets them, one each per row."""
        raise NotImplementedError

    def client_scores(self, client: str, scores: Scores, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """Scores that `eval.metrics` asks for, of all of a client's rows."""
        found, references = self.compared(examples, predictions)
        return scores_of(self.chosen, client, scores, found, references, self.figures)

    def pooled_scores(self, scores: Mapping[str, Scores]) -> Mapping[str, float]:
        """Figures of the chosen metrics that are no means."""
        return pooled_of(self.chosen, scores, self.figures) if self.chosen else {}
