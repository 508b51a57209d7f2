"""Draw the eight clients' examples and write them as a prepared folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from fedtorch.core.errors import DataError
from fedtorch.core.seeds import generator_for
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.data.recipe import prepare_once
from fedtorch.data.synthetic.questions import PATTERNS, fill
from fedtorch.data.synthetic.schemas import SCHEMAS, Schema
from fedtorch.data.text2sql import source_text, target_text
from fedtorch.text.sentencepiece import load_tokenizer, train_vocabulary

Example = dict[str, str]

VOCAB_SIZE = 240
_WORD_COPIES = 20

_BASIC = ("select", "where", "count", "above", "below")
_MEDIUM = (*_BASIC, "most", "highest", "lowest", "group")
_HARD = (*_MEDIUM, "average", "join", "nested")


@dataclass(frozen=True)
class ClientPlan:
    """How many examples a client gets, and of which kinds."""

    train: int
    """training questions"""
    dev: int
    """questions of dev"""
    test: int
    """questions of test"""
    patterns: tuple[str, ...]
    """names of those in `questions.PATTERNS` that its questions follow: its difficulty"""


# Three size classes and a factor of ten between them (4347 to 78 training questions in the eight real sets).
PLANS: dict[str, ClientPlan] = {
    "library": ClientPlan(640, 40, 60, _HARD),
    "cinema": ClientPlan(480, 40, 60, _HARD),
    "university": ClientPlan(320, 40, 60, _HARD),
    "hospital": ClientPlan(240, 40, 60, _HARD),
    "publisher": ClientPlan(160, 30, 50, _HARD),
    "festival": ClientPlan(100, 30, 50, _MEDIUM),
    "clinic": ClientPlan(80, 30, 50, _BASIC),
    "school": ClientPlan(60, 30, 50, _MEDIUM),
}


@dataclass(frozen=True)
class ClientData:
    """One client's schema and examples; no question occurs twice in it."""

    schema: Schema
    """its database"""
    train: list[Example]
    """training examples, shuffled"""
    dev: list[Example]
    """examples of dev"""
    test: list[Example]
    """examples of test"""


def generate(*, seed: int = 0) -> dict[str, ClientData]:
    """The eight clients by name, largest first; the same on every machine for the same seed."""
    return {schema.client: _client(schema, PLANS[schema.client], seed) for schema in SCHEMAS}


def _client(schema: Schema, plan: ClientPlan, seed: int) -> ClientData:
    generator = generator_for(seed, "synthetic questions", schema.client)
    patterns = [pattern for pattern in PATTERNS if pattern.name in plan.patterns]
    wanted = plan.train + plan.dev + plan.test
    found: dict[str, str] = {}
    misses = 0
    turn = 0
    while len(found) < wanted:
        # Patterns take turns, so every split has all of them; one with few questions (`select`) soon only repeats
        # itself, and its turns go to the others.
        filled = fill(patterns[turn % len(patterns)], schema, generator)
        turn += 1
        if filled is None or filled[0] in found:
            misses += 1
            if misses > 100 * wanted:
                raise DataError(f"client {schema.client} has {len(found)} distinct questions; expected {wanted}")
            continue
        found[filled[0]] = filled[1]
    examples = [{"question": question, "sql": sql} for question, sql in found.items()]
    # Found order is biased (scarce patterns come first), hence the shuffle before the split.
    shuffle = generator_for(seed, "synthetic split", schema.client)
    order = [examples[index] for index in torch.randperm(len(examples), generator=shuffle).tolist()]
    return ClientData(
        schema,
        train=order[: plan.train],
        dev=order[plan.train : plan.train + plan.dev],
        test=order[plan.train + plan.dev :],
    )


def prepare(out: Path, *, seed: int = 0) -> None:
    """Write the clients and a vocabulary of their training texts as a prepared folder; keep one made with this seed.

    Several processes may call it at once. The vocabulary is trained on what the clients' training splits hold
    together: that is a choice for a data set made to try things out, not something a federation could do with
    private text.

    Raises:
        DataError: `out` was prepared differently.
    """
    options = {"seed": seed, "vocab_size": VOCAB_SIZE}
    prepare_once(out, options, lambda folder: _write(folder, options, generate(seed=seed)))


def _write(folder: Path, options: dict[str, int], clients: dict[str, ClientData]) -> None:
    entries = {}
    texts: list[str] = []
    for name, client in clients.items():
        splits = {"train": client.train, "dev": client.dev, "test": client.test}
        entries[name] = write_client(folder, name, splits, facts={"schema": client.schema.text()})
        for row in client.train:
            texts += [source_text(row["question"], client.schema.text()), target_text(row["sql"])]
    # Every word becomes one piece, so sources are short. SentencePiece 0.2 only considers pieces that occur in two
    # different words, hence the comma; and the words of a small client would be too rare without the copies.
    words = {word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)}
    words |= {str(value) for client in clients.values() for value in client.schema.values()}
    texts += [f"{word} {word}, '{word}'" for word in sorted(words)] * _WORD_COPIES
    train_vocabulary(texts, folder / "tokenizer", size=VOCAB_SIZE)
    record = {"options": options, "vocabulary": len(load_tokenizer(folder / "tokenizer"))}
    write_manifest(folder, "synthetic", clients=entries, record=record)
