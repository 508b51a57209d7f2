"""From WikiSQL's published files to a prepared folder: one pool of questions per split, each with its table's header.

<dir>/manifest.json                   one entry, `pool`, with sizes and digests; counts of what was left out
<dir>/pool/{train,dev,test}.jsonl     question, header, types, agg, sel, conds: [[column, operator, value], ...]
<dir>/pool/tables.sqlite              dev's and test's tables, where the published files have their rows; a question has
                                      the number of its own as `table`
<dir>/pool/SPLIT.offsets.npy          where each row begins (int64), so that single rows can be read
<dir>/pool/SPLIT.words.npy            white-space words of each question (int16), to choose short ones
<dir>/tokenizer/                      a byte-level BPE of the training split, for encoders with random weights

Who holds which training question is not part of it: the task deals them out by its keys and a seed (`data/deal.py`),
so one folder serves every number of clients and every size of the server's share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtorch.core.errors import DataError
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.data.indexed import save_array, write_index
from fedtorch.data.recipe import prepare_once
from fedtorch.data.wikisql import TABLE_ID, Row, is_labelable, read_split, read_tables
from fedtorch.data.wikisql_tables import NAME as TABLES
from fedtorch.data.wikisql_tables import write_tables
from fedtorch.text.byte_bpe import train_subwords

POOL = "pool"
SPLITS = ("train", "dev", "test")
EVALUATED = ("dev", "test")
"""Splits whose queries may be run."""


def prepare_wikisql(raw: Path, out: Path, *, extra: bool = True, vocab_size: int = 4000) -> dict[str, Any]:
    """Prepare `raw` (train, dev and test `.jsonl` and `.tables.jsonl`, gzipped or not) and return the manifest.

    extra: add the files in `raw/extra` where there is such a folder. A query whose value is not in its question, or
    with more conditions than the model can name, is left out of its split and counted: HydraNet drops such examples in
    training and in evaluation.

    Raises:
        DataError: a file is missing or malformed, or `out` was prepared differently.
        ConfigError: no vocabulary of that size can be trained.
    """
    folders = [raw, *([raw / "extra"] if extra and (raw / "extra").is_dir() else [])]
    options = {"sources": _digests(folders), "extra": len(folders) > 1, "vocab_size": vocab_size}

    def write(folder: Path) -> None:
        splits = {split: [row for part in folders for row in read_split(part, split)] for split in SPLITS}
        tables = {
            name: table for split in EVALUATED for part in folders for name, table in read_tables(part, split).items()
        }
        write_pool(folder, "wikisql", splits, options, {name: t for name, t in tables.items() if t["rows"]})

    return prepare_once(out, options, write)


def write_pool(
    folder: Path,
    name: str,
    splits: Mapping[str, Sequence[Row]],
    options: Mapping[str, Any],
    tables: Mapping[str, Row] | None = None,
) -> None:
    """Write rows, indices, vocabulary and manifest into `folder`. tables: those with rows, by their published names.

    Raises:
        DataError: a split has no usable question.
    """
    kept = {split: [row for row in rows if is_labelable(row)] for split, rows in splits.items()}
    if empty := [split for split, rows in kept.items() if not rows]:
        raise DataError(f"{name}: the split {empty[0]} has no usable question")
    numbers = {table: number for number, table in enumerate(tables or {})}
    kept = {
        split: [_numbered(row, numbers if split in EVALUATED else {}) for row in rows] for split, rows in kept.items()
    }
    entry = write_client(folder, POOL, kept, facts={})
    if tables:
        write_tables(folder / POOL / TABLES, list(tables.values()))
    for split, rows in kept.items():
        write_index(folder / POOL / f"{split}.jsonl")
        lengths = np.array([len(row["question"].split()) for row in rows], dtype=np.int16)
        save_array(folder / POOL / f"{split}.words.npy", lengths)
    headers = {" ".join(row["header"]): None for row in kept["train"]}
    train_subwords(
        [" string real"] + [f" {text}" for text in (*headers, *(row["question"] for row in kept["train"]))],
        folder / "tokenizer",
        size=options["vocab_size"],
    )
    dropped = {split: len(splits[split]) - len(rows) for split, rows in kept.items()}
    write_manifest(
        folder, name, clients={POOL: entry}, record={"options": options, "dropped": dropped, "tables": len(numbers)}
    )


def _numbered(row: Row, numbers: Mapping[str, int]) -> Row:
    """With the number of its table, where that is known, in place of its name."""
    found = {key: value for key, value in row.items() if key != TABLE_ID}
    number = numbers.get(row.get(TABLE_ID, ""))
    return found if number is None else {**found, "table": number}


def _digests(folders: Sequence[Path]) -> dict[str, str]:
    """Folder and file name -> first 16 digits of the sha256, for the files that are there."""
    names = [f"{split}{kind}{end}" for split in SPLITS for kind in (".jsonl", ".tables.jsonl") for end in ("", ".gz")]
    found = [(folder.name if folder is not folders[0] else "", folder / name) for folder in folders for name in names]
    return {
        f"{part}/{path.name}".lstrip("/"): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for part, path in found
        if path.is_file()
    }
