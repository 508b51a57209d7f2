"""Question answering as ranking (the FedMatch paper): score the candidate answers of a question; MAP and MRR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.ranges import Count, Whole
from fedtorch.core.seeds import seed_for
from fedtorch.data.cover_queries import cover_triples, require_packages
from fedtorch.data.qa_folder import POOL, QARow, check_counts, read_pool, read_qa_rows
from fedtorch.metrics.ranking import average_precision, reciprocal_rank
from fedtorch.models.bert import BertEncoder
from fedtorch.models.esim import Esim
from fedtorch.models.networks.scoring import Scorer
from fedtorch.models.padding import by_length
from fedtorch.models.re2 import Re2
from fedtorch.tasks.base import Scores
from fedtorch.tasks.prepared import Prepared
from fedtorch.tasks.qa_examples import Labelled, Question, Triple, labelled, triples_of

Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class QA(Prepared):
    """Question answering sets as clients; the model is a BERT, with a patch or without."""

    main_metric: ClassVar[str] = "mrr"
    evaluates_loss: ClassVar[bool] = False
    synthetic_folder: ClassVar[str] = "synthetic_qa"

    model: BertEncoder = field(default_factory=BertEncoder)
    """which model"""
    max_lengths: tuple[Count, Count] = (10, 100)
    """most tokens of a question and of an answer; longer ones are cut at the end"""
    client_lengths: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    """client name -> its own `max_lengths`"""
    objective: Literal["hinge", "ce"] = "hinge"
    """hinge: max(0, 1 - f(q, a+) + f(q, a-)) over triples (the paper); ce: two-class cross entropy over rows (its
    code), which needs `model.head: two_class`"""
    pairs: Literal["all", "sampled"] = "all"
    """triples of an epoch. all: every pair of a relevant and an irrelevant answer of a question; sampled: one random
    irrelevant answer for each relevant one"""
    max_positives: Count | None = None
    """at most so many relevant answers of a training question, the first ones; PrivacyQA has 15 on average"""
    no_positive: Literal["zero", "skip"] = "zero"
    """a question of an evaluation without a relevant answer: counts as zero (trec_eval), or not at all"""
    train_share: dict[str, Share] = field(default_factory=dict)
    """client name -> share of its training questions that is used, the same ones in every run; with `max_train` it is a
    share of the questions which that leaves"""
    cover_queries: Whole = 0
    """CoverQuery: cover triples that are added to every training triple, with questions from the public pool"""
    cover_clusters: Annotated[int, Field(ge=2)] = 20
    """topics into which the public pool is divided"""

    def __post_init__(self) -> None:
        if self.cover_queries:
            require_packages(f"task.cover_queries: {self.cover_queries}")
        if (self.objective == "ce") != (self.model.head == "two_class") and self.objective == "ce":
            raise ConfigError("task.objective is ce but task.model.head is scalar; set task.model.head to two_class")
        if self.cover_queries and self.objective == "ce":
            raise ConfigError(
                f"task.cover_queries is {self.cover_queries} but task.objective is ce; cover queries are triples, "
                "so set task.objective to hinge"
            )

    def make_synthetic(self, folder: Path) -> None:
        """Five clients of different topics."""
        from fedtorch.data.synthetic_qa import prepare

        prepare(folder)

    @cached_property
    def vocabulary(self) -> Any:
        """The model's tokenizer, or its list of words."""
        return self.model.tokenizer(self.folder)

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Training examples and questions for evaluation per client."""
        clients = self.prepared["clients"]
        check_counts(self.folder, clients)
        for key, named in (("client_lengths", self.client_lengths), ("train_share", self.train_share)):
            if unknown := [name for name in named if name not in clients]:
                raise ConfigError(
                    f"task.{key} names the client `{unknown[0]}`, which {self.folder} does not have; its clients are "
                    + ", ".join(clients)
                )
        return {client: {split: self._size(client, split) for split in clients[client]["splits"]} for client in clients}

    def cost(self, client: str) -> float:
        """Tokens of a training example."""
        return float(sum(self._lengths(client)))

    def check(self, client: str) -> str | None:
        """Read all rows; see that the longest pair fits the model, and that cover queries have a public pool."""
        self.model.longest(*self._lengths(client))
        if self.cover_queries and len(pool := read_pool(self.folder)) < 2:
            raise DataError(
                f"task.cover_queries is {self.cover_queries} but {self.folder / POOL} has {len(pool)} questions; the "
                'published FedQA files bring none: put public ones there, one {"question": ...} a line'
            )
        for split in self.prepared["clients"][client]["splits"]:
            read_qa_rows(self.folder, client, split)
        return None

    def load(self, client: str, split: str) -> Sequence[Any]:
        """`Triple`s or `Labelled` rows to train on, `Question`s to evaluate with."""
        rows = read_qa_rows(self.folder, client, split)
        rows = [rows[i] for i in self.picked(client, split, len(rows))]
        if split == "train" and self.max_positives is not None:
            rows = [row.with_positives(self.max_positives) for row in rows]
        questions = self._encoded(client, rows)
        if split != "train":
            return questions
        if self.objective == "ce":
            return [row for question in questions for row in labelled(question)]
        triples = [triples_of(question, sampled=self.pairs == "sampled") for question in questions]
        genuine = [row.question for row, made in zip(rows, triples, strict=True) for _ in made]
        return [*(triple for made in triples for triple in made), *self._cover(client, genuine, rows)]

    def build_model(self, seed: int) -> nn.Module:
        """The model, checked against the longest pairs."""
        for lengths in (self.max_lengths, *self.client_lengths.values()):
            self.model.longest(*lengths)
        return self.model.build(seed, self.vocabulary)

    def draw_private(self, model: nn.Module, seed: int) -> Mapping[str, Tensor]:
        """Every client's patch starts at random values of its own."""
        assert isinstance(model, Scorer)
        return model.draw_private(seed)

    def collate(self, examples: Sequence[Triple | Labelled], train: bool) -> dict[str, Any]:
        """The model's batch of pairs. Triples: first all with the relevant answer, then all with an irrelevant one."""
        if isinstance(examples[0], Labelled):
            rows = [example for example in examples if isinstance(example, Labelled)]
            batch = self.model.collate(self.vocabulary, [(row.question, row.answer) for row in rows])
            return {"pairs": batch, "labels": torch.tensor([row.label for row in rows])}
        triples = [example for example in examples if isinstance(example, Triple)]
        pairs = [(triple.question, triple.positive) for triple in triples]
        for triple in triples:
            count = len(triple.negatives)  # the engine seeds the generator for every client and round
            drawn = int(torch.randint(count, ())) if count > 1 else 0
            pairs.append((triple.question, triple.negatives[drawn]))
        return {"pairs": self.model.collate(self.vocabulary, pairs)}

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
        """Sum and number of the triples' hinge losses or the rows' cross entropies."""
        assert isinstance(model, Scorer)
        output = model(**batch["pairs"])
        if "labels" in batch:
            return nn.functional.cross_entropy(output, batch["labels"], reduction="sum"), len(batch["labels"])
        positive, negative = model.scores(output).chunk(2)
        return hinge(positive, negative).sum(), len(positive)

    def loss_examples(self, examples: Sequence[Question]) -> list[Triple | Labelled]:
        """Every pair of a relevant and an irrelevant answer of each question, or every row: nothing is drawn."""
        if self.objective == "ce":
            return [row for question in examples for row in labelled(question)]
        return [triple for question in examples for triple in triples_of(question, sampled=False)]

    def predict(self, model: nn.Module, examples: Sequence[Question], batch_size: int) -> list[list[float]]:
        """f of every candidate of every question; `batch_size` pairs at a time, those of similar length together."""
        assert isinstance(model, Scorer)
        device = next(model.parameters()).device
        pairs = [(e.question, answer) for e in examples for answer in e.answers]
        scores = torch.zeros(len(pairs))
        for picked in by_length([len(question) + len(answer) for question, answer in pairs], batch_size):
            batch = self.model.collate(self.vocabulary, [pairs[i] for i in picked])
            output = model(**{name: tensor.to(device) for name, tensor in batch.items()})
            scores[picked] = model.scores(output).float().cpu()
        scores = scores.nan_to_num(nan=-torch.inf)  # a model that diverged ranks its candidates last
        parts = scores.split([len(example.answers) for example in examples])
        return [part.tolist() for part in parts]

    def score(self, examples: Sequence[Question], predictions: Sequence[list[float]]) -> Scores:
        """map and mrr: sums over the questions and their number."""
        sums, count = {"mrr": 0.0, "map": 0.0}, 0
        for example, scores in zip(examples, predictions, strict=True):
            precision = average_precision(scores, example.labels, example.docids)
            rank = reciprocal_rank(scores, example.labels, example.docids)
            if precision is None or rank is None:
                count += self.no_positive == "zero"
                continue
            sums["map"], sums["mrr"], count = sums["map"] + precision, sums["mrr"] + rank, count + 1
        return {metric: (total, count) for metric, total in sums.items()}

    def metrics(self) -> tuple[str, ...]:
        """MRR and MAP."""
        return ("mrr", "map")

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """The model with its tokenizer: backbone by `save_pretrained`, patch and head beside it."""
        assert isinstance(model, Scorer)
        self.model.save(model, self.vocabulary, folder)  # type: ignore[arg-type]

    def record(self) -> dict[str, Any]:
        """How the data were made, and what the model started from."""
        return {"data": self.prepared.get("record", {}), **self.model.record(self.vocabulary)}

    def limit(self, client: str, split: str, available: int) -> int:
        """The share is taken of what the cap leaves, at least one question: a smaller share is always less data."""
        share = self.train_share.get(client, 1.0) if split == "train" else 1.0
        most = super().limit(client, split, available)
        return min(most, max(1, round(share * most)))

    def _size(self, client: str, split: str) -> int:
        facts = self.prepared["clients"][client]["splits"][split]
        picked = self.picked(client, split, facts["examples"])
        if split != "train":
            return len(picked)
        count = 0
        for i in picked:
            positives = min(facts["positives"][i], self.max_positives or facts["positives"][i])
            negatives = facts["rows"][i] - facts["positives"][i]
            if self.objective == "ce":
                count += positives + negatives
            else:
                count += positives * (negatives if self.pairs == "all" else 1) * (1 + self.cover_queries)
        return count

    def _lengths(self, client: str) -> tuple[int, int]:
        return self.client_lengths.get(client, self.max_lengths)

    def _encoded(self, client: str, rows: Sequence[QARow]) -> list[Question]:
        """The rows as word ids; an answer that stands under several questions is encoded once."""
        most_question, most_answer = self._lengths(client)
        answers = list(dict.fromkeys(answer for row in rows for answer in row.answers))
        ids = dict(zip(answers, self.model.encode(self.vocabulary, answers, most_answer), strict=True))
        questions = self.model.encode(self.vocabulary, [row.question for row in rows], most_question)
        return [
            Question(question, [ids[answer] for answer in row.answers], row.labels, row.docids)
            for question, row in zip(questions, rows, strict=True)
        ]

    def _cover(self, client: str, genuine: Sequence[str], rows: Sequence[QARow]) -> list[Triple]:
        """The cover triples that a client uploads with its `genuine` ones, named by their questions."""
        if not self.cover_queries:
            return []
        cover = cover_triples(
            genuine,
            read_pool(self.folder),
            [answer for row in rows for answer in row.answers],
            per_triple=self.cover_queries,
            clusters=self.cover_clusters,
            seed=seed_for(0, "cover", client),
        )
        most_question, most_answer = self._lengths(client)
        questions = self.model.encode(self.vocabulary, [triple.question for triple in cover], most_question)
        answers = [text for triple in cover for text in (triple.positive, triple.negative)]
        ids = self.model.encode(self.vocabulary, answers, most_answer)
        return [Triple(q, a, [b]) for q, a, b in zip(questions, ids[::2], ids[1::2], strict=True)]


@dataclass(frozen=True)
class QARe2(QA):
    """Question answering with RE2, a model of its own for matching, without a pretrained encoder."""

    model: Re2 = field(default_factory=Re2)  # type: ignore[assignment]
    """which model"""


@dataclass(frozen=True)
class QAEsim(QA):
    """Question answering with ESIM."""

    model: Esim = field(default_factory=Esim)  # type: ignore[assignment]
    """which model"""


def hinge(positive: Tensor, negative: Tensor) -> Tensor:
    """max(0, 1 - f(q, a+) + f(q, a-)), elementwise; shape of both."""
    return (1 - positive + negative).clamp(min=0)
