"""A task over a prepared folder: what its manifest says of sizes and costs, and what ranks compare of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.models.t5 import RANDOM, T5Model
from fedtorch.tasks.prepared import Prepared, data_folder
from fedtorch.tasks.text2sql import Text2SQL

ENTRIES = {
    "a": {"splits": {"train": {"examples": 1, "characters": 10}, "test": {"examples": 7}}},
    "b": {"splits": {"train": {"examples": 4, "characters": 10}}},
    "c": {"splits": {"train": {"examples": 3}}},
    "d": {"splits": {"test": {"examples": 2}}},
}


@dataclass(frozen=True)
class Folder(Prepared):
    """Nothing of its own."""


def made(folder: Path, entries: Mapping[str, Any] = ENTRIES, **keys: Any) -> Folder:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"name": "x", "clients": entries, "record": {}, "format": 1}))
    return Folder(data=str(folder), **keys)


def test_sizes_and_costs_follow_from_the_manifest(tmp_path: Path) -> None:
    task = made(tmp_path / "data", max_train=2)
    assert task.manifest() == {
        "a": {"train": 1, "test": 7},
        "b": {"train": 2},
        "c": {"train": 2},
        "d": {"test": 2},
    }
    assert [task.cost(client) for client in "abcd"] == [10.0, 2.5, 1.0, 1.0]  # characters of an example, or 1
    assert task.picked("a", "test", 7) == list(range(7))
    assert task.picked("b", "train", 4) == task.picked("b", "train", 4) and len(task.picked("b", "train", 4)) == 2
    with pytest.raises(DataError, match="has no `e`; its clients are a, b, c, d"):
        task.own_entry("e")


def test_what_ranks_compare_is_the_manifest_whatever_its_order_and_the_vocabulary(tmp_path: Path) -> None:
    task = made(tmp_path / "data")
    digest = hashlib.sha256(json.dumps(ENTRIES, sort_keys=True).encode()).hexdigest()[:16]
    assert task.facts() == {"data": digest}
    assert made(tmp_path / "turned", dict(reversed(ENTRIES.items()))).facts() == {"data": digest}
    assert made(tmp_path / "fewer", {"a": ENTRIES["a"]}).facts()["data"] != digest
    words = tmp_path / "data" / "tokenizer"
    words.mkdir()
    (words / "b.txt").write_bytes(b"second")
    (words / "a.txt").write_bytes(b"first")
    found = made(tmp_path / "data").facts()
    assert found == {"data": digest, "vocabulary": hashlib.sha256(b"firstsecond").hexdigest()[:16]}


def test_the_packages_own_data_are_made_once_below_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[Path] = []

    def make(folder: Path) -> None:
        asked.append(folder)
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")

    assert data_folder("elsewhere", "toy", make) == Path("elsewhere") and asked == []
    assert data_folder("synthetic", "toy", make) == data_folder("synthetic", "toy", make) == Path("data/toy")
    assert asked == [Path("data/toy")]


@dataclass(frozen=True)
class Questions(Text2SQL):
    """Two rows of one client, in words of one letter each."""

    def _rows(self, client: str, split: str) -> list[dict[str, Any]]:
        return [{"question": "Q", "sql": "SELECT"}, {"question": "R", "sql": "DROP", "schema": "s"}] * (
            split == "train"
        )

    def _schema(self, client: str) -> str:
        return "own"

    def _encode(self, texts: list[str], max_length: int) -> list[list[int]]:
        return [list(map(ord, text)) for text in texts]


def test_questions_are_read_with_their_schema_or_the_clients() -> None:
    task = Questions()
    assert task.load("a", "dev") == []
    found = task.load("a", "train")
    assert [example.sql for example in found] == ["SELECT", "DROP"]
    texts = ["".join(map(chr, example.source)) for example in found]
    assert "own" in texts[0] and "own" not in texts[1] and "".join(map(chr, found[0].target)) == "select"


def test_a_tokenizer_is_the_models_own_or_lies_beside_the_data(tmp_path: Path) -> None:
    asked: list[tuple[str, Any]] = []

    @dataclass(frozen=True)
    class Notes(Text2SQL):
        """Notes which tokenizer is asked for."""

        def tokenizer_named(self, given: str | None, pretrained: str | None) -> Any:
            """And none is there."""
            asked.append((str(given), pretrained))
            return "task.tokenizer", str(tmp_path / "nothing")

    for name in (RANDOM, "t5-base"):
        with pytest.raises((ConfigError, DataError, OSError)):
            _ = Notes(data=str(tmp_path), model=T5Model(name=name)).vocabulary
    assert asked == [("None", None), ("None", "t5-base")]
    task = made(tmp_path / "data")
    assert task.tokenizer_named("own", "t5-base") == ("task.tokenizer", "own")
    assert task.tokenizer_named(None, "t5-base") == ("task.model.name", "t5-base")
    assert task.tokenizer_named(None, None) == ("task.data", tmp_path / "data" / "tokenizer")
