"""Text-to-SQL with T5 (the Lorar paper): question and schema in, SQL out, evaluated by exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import DataError
from fedtorch.core.ranges import Count
from fedtorch.data.check import round_trip
from fedtorch.data.folder import read_client, read_rows
from fedtorch.data.text2sql import source_text, target_text
from fedtorch.metrics.exact_match import exact_match
from fedtorch.models.adapters.saved import bases_elsewhere
from fedtorch.models.padding import pad
from fedtorch.models.t5 import RANDOM, T5Model, generate_greedily, save_pretrained
from fedtorch.tasks.base import Scores
from fedtorch.tasks.prepared import Prepared
from fedtorch.text.sentencepiece import decode, load_tokenizer


class Example(NamedTuple):
    """A question with its query."""

    source: list[int]
    """token ids of question and schema, ending in </s>"""
    target: list[int]
    """token ids of the query, ending in </s>"""
    sql: str
    """the data set's own"""


@dataclass(frozen=True)
class Text2SQL(Prepared):
    """Eight (or any number of) single-database text-to-SQL sets as clients."""

    main_metric: ClassVar[str] = "exact_match"

    model: T5Model = field(default_factory=T5Model)
    """which T5"""
    tokenizer: str | None = None
    """folder, hub name or `hub:NAME`; null: the model's own, or for `t5-random` the one beside the data"""
    add_tokens: tuple[str, ...] = ()
    """tokens that the vocabulary lacks; T5's own has no `<`"""
    input_max_length: Count = 1024
    """longer sources are cut at the end (the schema)"""
    output_max_length: Count = 512
    """longer targets are cut; also the most tokens that are generated"""
    em_normalise: bool = True
    """normalise both strings before exact match, as the paper's code does"""
    em_strings: bool = False
    """score bare strings too: `exact_match_string` against the data set's query, `exact_match_target` against the form
    of it that the model is trained to write (lower case but for quoted words)"""

    def make_synthetic(self, folder: Path) -> None:
        """Eight clients over eight small schemas."""
        from fedtorch.data.synthetic import prepare

        prepare(folder)

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer, checked to be a working one."""
        key, name = self.tokenizer_named(self.tokenizer, None if self.model.name == RANDOM else self.model.name)
        return load_tokenizer(name, self.add_tokens, key=key)

    def check(self, client: str) -> str | None:
        """Parse all rows, and see which gold queries survive encoding, cutting and decoding: a ceiling on exact match.

        Returns the ceilings below 100 % with what did not survive: unknown characters, cut targets, changed spaces.
        """
        self._schema(client)
        ceilings = []
        for split in self.prepared["clients"][client]["splits"]:
            golds = [row["sql"] for row in self._rows(client, split)]
            result = round_trip(self.vocabulary, golds, max_length=self.output_max_length)
            if golds and result.percent < 100:
                misses = ", ".join(f"{reason} {count}" for reason, count in result.misses.items() if count)
                ceilings.append(f"{split} {result.percent:.2f} % of {len(golds)} ({misses})")
        return f"ceiling of exact match after encoding: {'; '.join(ceilings)}" if ceilings else None

    def load(self, client: str, split: str) -> list[Example]:
        """Tokenised examples of one client; a fixed random subset where `max_<split>` says so."""
        rows = self._rows(client, split)
        if not rows:
            return []
        schema = self._schema(client)
        sources = [source_text(row["question"], row.get("schema", schema)) for row in rows]
        source_ids = self._encode(sources, self.input_max_length)
        target_ids = self._encode([target_text(row["sql"]) for row in rows], self.output_max_length)
        sqls = [row["sql"] for row in rows]
        return [Example(*parts) for parts in zip(source_ids, target_ids, sqls, strict=True)]

    def build_model(self, seed: int) -> nn.Module:
        """A T5 whose embedding fits the vocabulary."""
        return self.model.build(seed, self.vocabulary)

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Any]:
        """input_ids (batch, longest source) and labels (batch, longest target), int64; -100 is padding."""
        pad_id = self.vocabulary.pad_token_id
        inputs = pad([example.source for example in examples], pad_id)
        return {
            "input_ids": inputs,
            "attention_mask": (inputs != pad_id).long(),
            "labels": pad([example.target for example in examples], -100),
            "num_tokens": sum(len(example.target) for example in examples),
        }

    def example_lengths(self, examples: Sequence[Example]) -> list[tuple[int, ...]]:
        """Lengths of source and target, which are padded each for itself."""
        return [(len(example.source), len(example.target)) for example in examples]

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
        """Cross entropy over target tokens: (sum, number of tokens)."""
        output = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=batch["labels"],
            use_cache=False,
        )
        # in fp16 the sum would not fit
        return output.loss.float() * batch["num_tokens"], batch["num_tokens"]

    def predict(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[str]:
        """SQL by greedy decoding."""
        sources = [example.source for example in examples]
        outputs = generate_greedily(model, sources, batch_size=batch_size, max_length=self.output_max_length)
        return [decode(self.vocabulary, ids) for ids in outputs]

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Scores:
        """Numbers of predictions equal to the gold SQL, in each of the ways that `metrics` names."""
        hits = dict.fromkeys(self.metrics(), 0)
        for prediction, example in zip(predictions, examples, strict=True):
            hits["exact_match"] += exact_match(prediction, example.sql, normalised=self.em_normalise)
            if self.em_strings:
                hits["exact_match_string"] += exact_match(prediction, example.sql, normalised=False)
                hits["exact_match_target"] += exact_match(prediction, target_text(example.sql), normalised=False)
        return {name: (float(count), len(examples)) for name, count in hits.items()}

    def metrics(self) -> tuple[str, ...]:
        """exact_match, and with `em_strings` the two of bare strings."""
        return ("exact_match", *(["exact_match_string", "exact_match_target"] if self.em_strings else []))

    def unsaved(self, model: nn.Module) -> list[str]:
        """An adapter's base."""
        return bases_elsewhere(model)

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """`save_pretrained` of model and tokenizer."""
        save_pretrained(model, self.vocabulary, folder)

    def record(self) -> dict[str, Any]:
        """How the data were made."""
        return {"data": self.prepared.get("record", {}), "vocabulary": len(self.vocabulary)}

    def _rows(self, client: str, split: str) -> list[dict[str, Any]]:
        rows = read_rows(self.folder, client, split)
        if strange := [i for i, row in enumerate(rows) if not isinstance(row.get("schema", ""), str)]:
            raise DataError(
                f"{self.folder}: client {client}, split {split}, row {strange[0] + 1}: `schema` is no string; prepare "
                "the data again"
            )
        return [rows[i] for i in self.picked(client, split, len(rows))]

    def _schema(self, client: str) -> str:
        schema: str = read_client(self.folder, client, fields={"schema": str})["schema"]
        return schema

    def _encode(self, texts: list[str], max_length: int) -> list[list[int]]:
        ids: list[list[int]] = self.vocabulary(texts, truncation=True, max_length=max_length).input_ids
        return ids
