"""A prepared folder of two-side dialogs, each domain one data holder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.data.dialogs import Turns
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.text.gpt2_bpe import load_bpe, train_bpe

SPLITS = ("train", "dev", "test")


def write_dialogs(
    folder: Path, holders: Mapping[str, Mapping[str, Sequence[Turns]]], record: Mapping[str, Any], *, vocab_size: int
) -> None:
    """Write holders (name -> split -> dialogs), vocabulary and manifest into an empty folder."""
    clients = {}
    for holder, splits in holders.items():
        rows = {split: [{"turns": turns} for turns in splits.get(split, ())] for split in SPLITS}
        entry = write_client(folder, holder, rows, facts={"domain": holder})
        for split, facts in entry["splits"].items():  # what a holder's training costs; only strings are counted there
            facts["characters"] = sum(len(text) for row in rows[split] for _, text in row["turns"])
        clients[holder] = entry
    texts = [text for splits in holders.values() for turns in splits["train"] for _, text in turns]
    train_bpe(texts, folder / "tokenizer", size=vocab_size)
    vocabulary = len(load_bpe(folder / "tokenizer"))
    write_manifest(folder, "dialog", clients=clients, record={**record, "vocabulary": vocabulary})
