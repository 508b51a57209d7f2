"""Tasks on a prepared folder: its manifest, sub-sampling, and the facts for the record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from typing_extensions import Self

from fedtorch.core.errors import DataError
from fedtorch.core.ranges import Count
from fedtorch.core.seeds import generator_for
from fedtorch.data.folder import client_file, read_manifest, read_rows
from fedtorch.tasks.base import Task
from fedtorch.tasks.copies import copy_as

SYNTHETIC = "synthetic"
SILOS = ".privacy"
"""Of the folder beside a folder of data, after that one's name, in which each silo has its key and its ledger."""
Entry = Mapping[str, Any]
"""A client's entry in the manifest: `splits`, each with `examples`, `sha256` and further counts."""


def data_folder(data: str, synthetic_folder: str, make: Callable[[Path], None]) -> Path:
    """The folder that `task.data` names. `synthetic` is one below data/, which `make` writes where it is missing."""
    if data != SYNTHETIC:
        return Path(data)
    folder = Path("data") / synthetic_folder
    if not (folder / "manifest.json").is_file():
        make(folder)
    return folder


@dataclass(frozen=True)
class InFolder(Task):
    """A task whose clients lie in a folder of prepared rows; a subclass says which."""

    reads_other_clients: ClassVar[bool] = False
    """does a client's work need the files of other clients?"""

    max_train: Count | None = None
    """at most so many training rows per client (few-shot: and task), the same ones in every run; null: all"""
    max_dev: Count | None = None
    """at most so many dev rows per client (few-shot: and task)"""
    max_test: Count | None = None
    """at most so many test rows per client (few-shot: and task)"""

    @cached_property
    def folder(self) -> Path:
        """The prepared rows, made where they are missing and can be."""
        raise NotImplementedError

    @property
    def ledgers(self) -> Path:
        """The folder in which each silo has its key and its ledger of all that was released of its rows."""
        folder = self.folder.resolve()
        return folder.with_name(folder.name + SILOS)

    @cached_property
    def prepared(self) -> dict[str, Any]:
        """The folder's manifest."""
        return read_manifest(self.folder)

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Examples per client and split after sub-sampling."""
        return {
            client: {split: self.limit(client, split, facts["examples"]) for split, facts in entry["splits"].items()}
            for client, entry in self.prepared["clients"].items()
        }

    def cost(self, client: str) -> float:
        """Characters per training example; 1 where the manifest does not count them."""
        facts = self.prepared["clients"][client]["splits"].get("train", {"examples": 1})
        return float(facts.get("characters", facts["examples"]) / max(1, facts["examples"]))

    def own_entry(self, client: str) -> Entry:
        """A client's entry in this folder's manifest, its files being there.

        Raises:
            DataError: the folder, the entry or a file is missing.
        """
        entries = self.prepared["clients"]
        if client not in entries:
            known = ", ".join(list(entries)[:10])
            raise DataError(f"the manifest of {self.folder} has no `{client}`; its clients are {known or 'none'}")
        entry: Entry = entries[client]
        for split in entry["splits"]:
            client_file(self.folder, client, f"{split}.jsonl")
        return entry

    def pinned_problem(self, *, learns: bool = True) -> str:
        """Which setting needs all clients' rows in one place, and what to set instead; "" if none does.

        learns: False where rows are only counted.
        """
        return ""

    def with_entries(self, entries: Mapping[str, Entry]) -> Self:
        """This task with other entries in place of those of its folder's manifest, which is not read any more."""
        # of a task that has read nothing: what it would read is told
        return copy_as(type(self), replace(self), prepared={"clients": dict(entries), "record": {}})

    def max_rows(self, split: str) -> int | None:
        """`max_train`, `max_dev` or `max_test`; None for another split."""
        return {"train": self.max_train, "dev": self.max_dev, "test": self.max_test}.get(split)

    def limit(self, client: str, split: str, available: int) -> int:
        """How many of a client's rows are used."""
        most = self.max_rows(split)
        return available if most is None else min(most, available)

    def picked(self, client: str, split: str, available: int) -> list[int]:
        """Which of a client's rows are used: a fixed random subset, in file order."""
        limit = self.limit(client, split, available)
        if limit == available:
            return list(range(available))
        order = torch.randperm(available, generator=generator_for(0, "subset", client, split))
        return sorted(order[:limit].tolist())

    def rows(self, client: str, split: str) -> list[dict[str, Any]]:
        """The rows that are used of a client's split."""
        rows = read_rows(self.folder, client, split, fields=())
        return [rows[i] for i in self.picked(client, split, len(rows))]

    def data_digest(self) -> str:
        """Digest of the data manifest, which has a digest of every file."""
        return hashlib.sha256(json.dumps(self.prepared["clients"], sort_keys=True).encode()).hexdigest()[:16]

    def facts(self) -> dict[str, str]:
        """Digests of the data manifest and of the vocabulary beside the data."""
        facts = {"data": self.data_digest()}
        if words := sorted((self.folder / "tokenizer").glob("*")):
            hasher = hashlib.sha256()
            for path in words:
                hasher.update(path.read_bytes() if path.is_file() else b"")
            facts["vocabulary"] = hasher.hexdigest()[:16]
        return facts


@dataclass(frozen=True)
class Prepared(InFolder):
    """A task over a folder written by `python -m fedtorch.data prepare`, or made up by the package."""

    synthetic_folder: ClassVar[str] = SYNTHETIC
    """where the package's own data set goes, below `data/`"""

    data: str = SYNTHETIC
    """folder written by `python -m fedtorch.data prepare`, or `synthetic`: made by the package in data/"""

    def make_synthetic(self, folder: Path) -> None:
        """Write the package's own data set into `folder`."""
        raise NotImplementedError

    @cached_property
    def folder(self) -> Path:
        """The prepared data; makes the synthetic set where it is asked for and missing."""
        return data_folder(self.data, self.synthetic_folder, self.make_synthetic)

    def tokenizer_named(self, given: str | None, pretrained: str | None) -> tuple[str, str | Path]:
        """(the key that names it, its name) of the given tokenizer, the pretrained model's or the one of the data."""
        if given:
            return "task.tokenizer", given
        return ("task.model.name", pretrained) if pretrained else ("task.data", self.folder / "tokenizer")
