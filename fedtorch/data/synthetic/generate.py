"""Draw the eight silos' examples and write them as a prepared folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from fedtorch.core.errors import DataError
from fedtorch.core.seeds import generator_for
from fedtorch.data.folder import read_manifest, write_client, write_manifest
from fedtorch.data.paths import atomic_folder
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
class Plan:
    """How many examples a silo gets, and of which patterns: its difficulty."""

    train: int
    dev: int
    test: int
    patterns: tuple[str, ...]


# Three size classes and a factor of ten between them (4347 to 78 training questions in the eight real sets).
PLANS: dict[str, Plan] = {
    "library": Plan(640, 40, 60, _HARD),
    "cinema": Plan(480, 40, 60, _HARD),
    "university": Plan(320, 40, 60, _HARD),
    "hospital": Plan(240, 40, 60, _HARD),
    "publisher": Plan(160, 30, 50, _HARD),
    "festival": Plan(100, 30, 50, _MEDIUM),
    "clinic": Plan(80, 30, 50, _BASIC),
    "school": Plan(60, 30, 50, _MEDIUM),
}


@dataclass(frozen=True)
class Silo:
    """One client's schema and examples; no question occurs twice in it."""

    schema: Schema
    train: list[Example]
    dev: list[Example]
    test: list[Example]


def generate(*, seed: int = 0) -> dict[str, Silo]:
    """The eight silos by client name, largest first; the same on every machine for the same seed."""
    return {schema.client: _silo(schema, PLANS[schema.client], seed) for schema in SCHEMAS}


def _silo(schema: Schema, plan: Plan, seed: int) -> Silo:
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
                raise DataError(f"silo {schema.client} has {len(found)} distinct questions; expected {wanted}")
            continue
        found[filled[0]] = filled[1]
    examples = [{"question": question, "sql": sql} for question, sql in found.items()]
    # Found order is biased (scarce patterns come first), hence the shuffle before the split.
    shuffle = generator_for(seed, "synthetic split", schema.client)
    order = [examples[index] for index in torch.randperm(len(examples), generator=shuffle).tolist()]
    return Silo(
        schema,
        train=order[: plan.train],
        dev=order[plan.train : plan.train + plan.dev],
        test=order[plan.train + plan.dev :],
    )


def prepare(out: Path, *, seed: int = 0) -> None:
    """Write the silos and a vocabulary of their training texts as a prepared folder; keep one made with this seed.

    Several processes may call it at once. The vocabulary is trained on what the clients' training splits hold
    together: that is a choice for a data set made to try things out, not something a federation could do with
    private text.

    Raises:
        DataError: `out` was prepared differently.
    """
    options = {"seed": seed, "vocab_size": VOCAB_SIZE}
    if not _is_prepared(out, options):
        with atomic_folder(out) as folder:
            _write(folder, options, generate(seed=seed))
        _is_prepared(out, options)  # another process may have been faster, with another seed


def _is_prepared(out: Path, options: dict[str, int]) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    found = read_manifest(out)["record"].get("options")
    if found != options:
        raise DataError(f"{out} was prepared with {found}, expected {options}; remove it or choose another folder")
    return True


def _write(folder: Path, options: dict[str, int], silos: dict[str, Silo]) -> None:
    clients = {}
    texts: list[str] = []
    for client, silo in silos.items():
        splits = {"train": silo.train, "dev": silo.dev, "test": silo.test}
        clients[client] = write_client(folder, client, splits, facts={"schema": silo.schema.text()})
        for row in silo.train:
            texts += [source_text(row["question"], silo.schema.text()), target_text(row["sql"])]
    # Every word becomes one piece, so sources are short. SentencePiece 0.2 only considers pieces that occur in two
    # different words, hence the comma; and the words of a small silo would be too rare without the copies.
    words = {word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)}
    words |= {str(value) for silo in silos.values() for value in silo.schema.values()}
    texts += [f"{word} {word}, '{word}'" for word in sorted(words)] * _WORD_COPIES
    train_vocabulary(texts, folder / "tokenizer", size=VOCAB_SIZE)
    record = {"options": options, "vocabulary": len(load_tokenizer(folder / "tokenizer"))}
    write_manifest(folder, "synthetic", clients=clients, record=record)
