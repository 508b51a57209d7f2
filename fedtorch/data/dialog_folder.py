"""A prepared folder of two-side dialogs, each domain one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.data.dialogs import Turns
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.text.gpt2_bpe import load_bpe, train_bpe

SPLITS = ("train", "dev", "test")


def write_dialogs(
    folder: Path, clients: Mapping[str, Mapping[str, Sequence[Turns]]], record: Mapping[str, Any], *, vocab_size: int
) -> None:
    """Write clients (name -> split -> dialogs), vocabulary and manifest into an empty folder."""
    entries = {}
    for client, splits in clients.items():
        rows = {split: [{"turns": turns} for turns in splits.get(split, ())] for split in SPLITS}
        entry = write_client(folder, client, rows, facts={"domain": client})
        for split, facts in entry["splits"].items():  # what a client's training costs; only strings are counted there
            facts["characters"] = sum(len(text) for row in rows[split] for _, text in row["turns"])
        entries[client] = entry
    texts = [text for splits in clients.values() for turns in splits["train"] for _, text in turns]
    train_bpe(texts, folder / "tokenizer", size=vocab_size)
    vocabulary = len(load_bpe(folder / "tokenizer"))
    write_manifest(folder, "dialog", clients=entries, record={**record, "vocabulary": vocabulary})
