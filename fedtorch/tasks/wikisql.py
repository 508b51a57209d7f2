"""WikiSQL with HydraNet (the FedParsing paper): labelled questions on the server, unlabelled ones on the clients."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, Count, Whole
from fedtorch.data.folder import read_manifest
from fedtorch.data.hydranet import Gold, HydraNetRow, Question, Rows, row_labels
from fedtorch.data.prepare_wikisql import POOL, TABLES
from fedtorch.data.question_pool import QuestionPool
from fedtorch.models.consistency import ALL_HEADS, WITHOUT_COLUMN, mask_words, masked_word_loss, squared_distance
from fedtorch.models.encoder import EncoderModel
from fedtorch.models.hydranet import save_hydranet
from fedtorch.models.networks.hydranet import HydraNet, Outputs, Query, decode, row_losses
from fedtorch.models.padding import by_length
from fedtorch.tasks.base import SERVER, Scores, Task
from fedtorch.tasks.prepared import SYNTHETIC, data_folder
from fedtorch.tasks.wikisql_measures import EXECUTION, LOGICAL_FORM, MEASURES, scores
from fedtorch.text.byte_bpe import load_subwords

log = logging.getLogger(__name__)

Example = Question | tuple[HydraNetRow, ...]
"""To evaluate with: a question with its query. To train on: rows that stay together, one or all of a question."""


@dataclass(frozen=True)
class WikiSQL(Task):
    """The server's share has labels, the clients' questions have none; dev and test are evaluated in parts.

    `part0` and so on are no clients: they hold the shares of dev and test questions that one worker evaluates.
    """

    main_metric: ClassVar[str] = "overall"
    has_labelled_clients: ClassVar[bool] = False

    data: str = SYNTHETIC
    """folder written by `python -m fedtorch.data prepare wikisql`, or `synthetic`: made by the package"""
    encoder: EncoderModel = field(default_factory=EncoderModel)
    """which encoder"""
    max_length: Count = 96
    """tokens of a row; longer ones are cut"""
    head_dropout: BelowOne = 0.2
    """dropout before the heads"""
    attention: bool = False
    """one self-attention layer before the heads"""
    masked_words: bool = False
    """build the head for masked words, which `algorithm.group: hydranet_mlm` trains"""
    server_labelled: Count = 1000
    """S, labelled training questions on the server"""
    num_clients: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """clients with unlabelled questions"""
    client_size: tuple[Count, Count] = (20, 40)
    """smallest and largest number of questions of a client, drawn uniformly"""
    deal_seed: Whole = 0
    """decides who holds which question, whatever `run.seed` is"""
    max_words: Count | None = None
    """leave out questions of more white-space words; null: none"""
    batch_unit: Literal["row", "question"] = "row"
    """what `batch_size` counts: rows (a question with one of its columns), or questions with all their columns"""
    client_input: Literal["pair", "question_only"] = "pair"
    """rows of clients: with a column each, or one per question without (only heads that need no column then count)"""
    parts: Annotated[int, Field(ge=1, le=10_000)] = 16
    """into how many parts dev and test are divided, for the workers to evaluate"""
    max_dev: Count | None = None
    """at most so many dev questions, the same ones in every run; null: all"""
    max_test: Count | None = None
    """at most so many test questions"""

    def __post_init__(self) -> None:
        low, high = self.client_size
        if low > high:
            raise ConfigError(f"client_size is [{low}, {high}] but the first is the smaller one; turn them round")

    @cached_property
    def folder(self) -> Path:
        """The prepared data; makes the synthetic set where it is asked for and missing."""
        from fedtorch.data.synthetic_wikisql import prepare

        return data_folder(self.data, "synthetic_wikisql", prepare)

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self.folder)

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The encoder's own, or for a random one that of the data."""
        if not self.encoder.is_random:
            return self.encoder.vocabulary()
        return load_subwords(self.folder / "tokenizer", key="task.data")

    @cached_property
    def rows(self) -> Rows:
        """Makes model input of questions."""
        return Rows(self.vocabulary, self.max_length)

    @cached_property
    def pool(self) -> QuestionPool:
        """Who holds which question."""
        return QuestionPool(
            self.folder,
            server=self.server_labelled,
            clients=self.num_clients,
            sizes=self.client_size,
            seed=self.deal_seed,
            max_words=self.max_words,
            parts=self.parts,
            limits={"dev": self.max_dev, "test": self.max_test},
        )

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Questions per client, then those of each part of dev and test."""
        return self.pool.manifest

    def server_examples(self) -> int:
        """S."""
        return self.server_labelled

    def check(self, client: str) -> None:
        """Read the client's questions."""
        for split in self.manifest()[client]:
            self.pool.read(client, split)

    def load(self, client: str, split: str) -> list[Example]:
        """The server's rows with labels, a client's without; the questions of a part of dev or test."""
        found = self.pool.read_server() if client == SERVER else self.pool.read(client, split)
        if client != SERVER and not self.pool.is_part(client):
            has_columns = self.client_input == "pair"
            return self._units([self.rows.unlabelled(row, with_columns=has_columns) for row in found])
        questions = [question for row in found if (question := self.rows.labelled(row)) is not None]
        if lost := len(found) - len(questions):
            log.info("%s %s: %d of %d questions lose a value at %d tokens and are left out",
                     client, split, lost, len(found), self.max_length)  # fmt: skip
        return self._units(questions) if client == SERVER else [*questions]

    def build_model(self, seed: int) -> nn.Module:
        """Encoder and heads, drawn from `seed` where they are not pretrained."""
        vocabulary = self.vocabulary
        encoder = self.encoder.build(
            seed, vocab_size=len(vocabulary), max_length=self.max_length, pad_id=vocabulary.pad_token_id
        )
        return HydraNet(encoder, dropout=self.head_dropout, attention=self.attention, masked_words=self.masked_words)

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Any]:
        """All rows of the examples, (B, longest) each; labels (B, 7) where they are known.

        first_last: per row the positions of its question, the second one excluded; rows_per_example: a list.
        """
        groups = [example.rows if isinstance(example, Question) else example for example in examples]
        rows = [row for group in groups for row in group]
        lengths = torch.tensor([len(row.ids) for row in rows])
        ids = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row.ids) for row in rows], batch_first=True, padding_value=self.vocabulary.pad_token_id
        )
        places, first_last = torch.arange(ids.shape[1]), torch.tensor([[row.first, row.last] for row in rows])
        mask = places < lengths[:, None]
        batch = {
            "input_ids": ids,
            "attention_mask": mask.long(),
            "token_type_ids": ((places >= first_last[:, :1]) & mask).long(),
            "first_last": first_last,
            "rows_per_example": [len(group) for group in groups],
        }
        if all(row.labels is not None for row in rows):
            batch["labels"] = torch.tensor([row.labels for row in rows])
        return batch

    def outputs(self, model: nn.Module, batch: dict[str, Any]) -> Outputs:
        """The heads' logits for a batch."""
        found: Outputs = model(batch)
        return found

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
        """HydraNet's loss: (sum over rows, rows)."""
        if "labels" not in batch:
            raise ConfigError("clients of the task wikisql hold no labels; set algorithm.name to fedparsing")
        return self._row_loss(self.outputs(model, batch), batch["labels"])

    def consistency(
        self, student: Outputs, teacher: Outputs, batch: dict[str, Any], *, kind: str, mean: bool
    ) -> tuple[Tensor, int]:
        """FedParsing, eq. 1: (sum over rows, rows). kind: mse_prob, mse_logit, or hard (the teacher's query)."""
        if kind == "hard":
            return self._row_loss(student, self._pseudo_labels(teacher, batch))
        heads = WITHOUT_COLUMN if self.client_input == "question_only" else ALL_HEADS
        distance = squared_distance(student, teacher, heads=heads, logits=kind == "mse_logit", mean=mean)
        return distance.sum(), len(distance)

    def masked_word_loss(
        self, model: nn.Module, batch: dict[str, Any], *, share: float, masked: float, random: float
    ) -> tuple[Tensor, int]:
        """Cross entropy of the question's masked tokens: (sum, number)."""
        assert isinstance(model, HydraNet)
        ids, first_last = batch["input_ids"], batch["first_last"]
        places = torch.arange(ids.shape[1], device=ids.device)
        is_question = (places >= first_last[:, :1]) & (places < first_last[:, 1:])
        changed, chosen = mask_words(
            ids,
            is_question,
            mask_id=self.vocabulary.mask_token_id,
            vocab_size=len(self.vocabulary),
            share=share,
            masked=masked,
            random=random,
        )
        return masked_word_loss(model, batch, changed, chosen)

    def predict(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[Query]:
        """The query of each question; questions of similar length share a batch."""
        device = next(model.parameters()).device
        questions = [example for example in examples if isinstance(example, Question)]
        lengths = [max(len(row.ids) for row in question.rows) for question in questions]
        found: dict[int, Query] = {}
        for picked in by_length(lengths, batch_size):
            batch = self.collate([questions[i] for i in picked], False)
            moved = {name: part.to(device) for name, part in batch.items() if isinstance(part, Tensor)}
            found.update(zip(picked, self._decoded(self.outputs(model, moved), batch), strict=True))
        return [found[i] for i in range(len(questions))]

    def score(self, examples: Sequence[Example], predictions: Sequence[Query]) -> Scores:
        """The seven measures, the logical-form accuracy, and where tables have rows that of the answers."""
        questions = [example for example in examples if isinstance(example, Question)]
        return scores(questions, predictions, self.folder / POOL / TABLES if self.has_tables else None)

    def metrics(self) -> tuple[str, ...]:
        """HydraNet's seven, and WikiSQL's own."""
        return (*MEASURES, LOGICAL_FORM, *([EXECUTION] if self.has_tables else []))

    @property
    def has_tables(self) -> bool:
        """Have dev's and test's tables rows, so that queries can be run?"""
        return bool(self._manifest["record"].get("tables"))

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """Encoder and vocabulary by `save_pretrained`, the heads beside them."""
        assert isinstance(model, HydraNet)
        save_hydranet(model, self.vocabulary, folder)

    def facts(self) -> dict[str, str]:
        """Digest of the data manifest and of who holds what."""
        hasher = hashlib.sha256(json.dumps(self._manifest["clients"], sort_keys=True).encode())
        for part in (self.pool.dealt.server, self.pool.dealt.rows, self.pool.dealt.starts):
            hasher.update(np.ascontiguousarray(part).data)  # no copy: it may be 100 MB
        return {"data": hasher.hexdigest()[:16]}

    def record(self) -> dict[str, Any]:
        """How the data were made and dealt."""
        return {
            "data": self._manifest["record"],
            "vocabulary": len(self.vocabulary),
            "usable_train": len(self.pool.usable("train")),
            "dealt_to_clients": int(self.pool.dealt.starts[-1]),
            "clients_sharing_a_question": self.pool.dealt.num_overlapping(),
        }

    def _units(self, questions: Sequence[Question]) -> list[Example]:
        if self.batch_unit == "question":
            return [tuple(question.rows) for question in questions]
        return [(row,) for question in questions for row in question.rows]

    def _row_loss(self, outputs: Outputs, labels: Tensor) -> tuple[Tensor, int]:
        losses = row_losses(outputs, labels)
        return torch.stack(list(losses.values())).sum(), len(labels)

    def _decoded(self, outputs: Outputs, batch: dict[str, Any]) -> list[Query]:
        spans = [(first, last - 1) for first, last in batch["first_last"].tolist()]
        return decode(outputs, spans, batch["rows_per_example"])

    def _pseudo_labels(self, teacher: Outputs, batch: dict[str, Any]) -> Tensor:
        """Labels of the queries that the teacher spells."""
        labels = []
        for query, count in zip(self._decoded(teacher, batch), batch["rows_per_example"], strict=True):
            conditions = {column: query.conditions[column] for column in query.where}
            gold = Gold(query.agg, query.sel, len(query.where), conditions, ())
            labels += [row_labels(gold, column) for column in range(count)]
        return torch.tensor(labels, device=batch["input_ids"].device)
