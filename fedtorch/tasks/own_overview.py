"""An overview of a task's own data: what every client has, and whether training would take it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.core.processes import on_all_cores
from fedtorch.data.own.keys import SPLITS
from fedtorch.data.own.overview import NAMED, ClientRows, Overview, set_divergences, split_digests
from fedtorch.data.own.partition_files import write_partition
from fedtorch.data.own.picture import draw
from fedtorch.data.own.prepare import partition_of
from fedtorch.data.own.rows import content_digest
from fedtorch.tasks.own import OwnTask

__all__ = ["Overview", "draw", "overview", "some_rows", "write_partition_of"]

ROWS_ON_ALL_CORES = 50_000
"""From so many rows on further processes are worth their start."""

READ_AGAIN = 20
"""So many rows of a client's split that may be cut are read once more before a run, to know whether they are."""


@dataclass(frozen=True)
class Looked:
    """One client, looked at."""

    facts: ClientRows
    """numbers of rows, tokens and labels, for the table"""
    digests: dict[str, list[bytes]]
    """split -> `content_digest` of every row"""
    problems: list[str]
    """why training would refuse"""


def overview(task: OwnTask, say: Callable[[int, int], None] = lambda done, of: None) -> Overview:
    """Look at all rows of all clients, as they were prepared; of many rows on all cores.

    What one client's rows make training refuse is in `problems`; the others are looked at all the same. say: is told
    after how many clients of how many it is.

    Raises:
        ConfigError, DataError: the rows cannot be prepared at all.
    """
    entries = task.prepared["clients"]
    found = Overview(task.task_kind, {}, _shared(task), task.prepared.get("record", {}).get("left_out", 0))
    digests: dict[tuple[str, str], list[bytes]] = {}
    task.vocabulary  # noqa: B018  # read once, for all processes
    rows = sum(split["examples"] for entry in entries.values() for split in entry["splits"].values())
    look = partial(_look, task, list(entries))
    each = on_all_cores(look, list(entries), is_worth_it=rows >= ROWS_ON_ALL_CORES)
    for client, looked in zip(entries, each, strict=True):
        found.clients[client] = looked.facts
        digests |= {(client, split): rows for split, rows in looked.digests.items()}
        found.problems += looked.problems[: max(0, NAMED - len(found.problems))]
        say(len(found.clients), len(entries))
    set_divergences(found)
    split_digests(digests, found, task.folder)
    return found


def remarks(task: OwnTask, clients: Sequence[str]) -> list[str]:
    """Say what may spoil a run of these clients: rows that are cut, labels and rows that a split lacks.

    As `overview` looks, but for rows that stand twice, of which the preparation has warned, and in one pass: of many
    rows that fill `task.max_length` those beyond `READ_AGAIN` in a split count as cut, though one may just fit.

    Raises:
        DataError: training would refuse a client's rows.
    """
    found = Overview(task.task_kind, {}, _shared(task))
    for client in clients:
        looked = _look(task, clients, client, is_whole=False)
        if looked.problems:
            raise DataError(looked.problems[0])
        found.clients[client] = looked.facts
    return found.remarks()


def some_rows(task: OwnTask, number: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(client, row of train), of one client after the other in turn."""
    rows = {client: iter(task.rows(client, "train")) for client in list(task.prepared["clients"])[:number]}
    while rows and number:
        for client in list(rows):
            row = next(rows[client], None)
            if row is None:
                del rows[client]
            elif number:
                number -= 1
                yield client, row


def write_partition_of(task: OwnTask, folder: Path) -> list[int]:
    """Write which rows each client has, see `write_partition`; how many each has.

    Raises:
        ConfigError, DataError: the rows cannot be read or dealt, or the folder is taken.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    parts = row_ids_of(task, folder.parent)
    write_partition(folder, parts)
    return [len(rows) for rows in parts.values()]


def row_ids_of(task: OwnTask, scratch: Path | None = None) -> dict[str, list[str]]:
    """client -> ids of its rows, splits that are files left out. scratch: where copies may lie meanwhile.

    Raises:
        ConfigError, DataError: the rows cannot be read or dealt.
    """
    with TemporaryDirectory(prefix=".rows-", dir=scratch) as folder:
        parts, ids = partition_of(task.data, task.kept_form(), Path(folder), task.label_of)
    return {client: [ids[row] for row in rows.tolist()] for client, rows in parts.items()}


def _shared(task: OwnTask) -> dict[str, Any]:
    return {split: owners for split in SPLITS if (owners := task.sharing(split))}


def _look(task: OwnTask, among: Sequence[str], client: str, *, is_whole: bool = True) -> Looked:
    """among: of these the first one with shared rows counts them. is_whole: False for what `remarks` needs."""
    entries, form = task.prepared["clients"], task.form()
    looked = Looked(ClientRows(), {}, [])
    for split in entries[client]["splits"]:
        rows, where = task.rows(client, split), f"{split} of client {client}"
        looked.facts.rows[split] = len(rows)
        owners = task.sharing(split)
        if client in owners and client != next(name for name in among if name in owners):
            continue
        if is_whole:
            looked.digests[split] = [content_digest(form.texts(row)) for row in rows]
        _add(looked, task, split, rows, where, None if is_whole else READ_AGAIN)
    return looked


def _add(looked: Looked, task: OwnTask, split: str, rows: list[dict[str, Any]], where: str, again: int | None) -> None:
    facts, examples = looked.facts, []
    try:
        examples = task.examples(rows, where) if rows else []
        task.refuse(examples, where)
    except DataError as error:
        looked.problems.append(str(error))
    lengths = _lengths(task, rows, examples, again)
    facts.tokens += lengths
    facts.cut += sum(length > task.max_length for length in lengths) if task.cuts else 0
    if split == "train":
        facts.unsupervised += task.unsupervised(examples)
    labels = facts.labels if split == "train" else facts.evaluated.setdefault(split, Counter())
    for row in rows:
        label = task.label_of(row)
        if label is not None:
            labels.update(map(str, label) if isinstance(label, list) else [str(label)])


def _lengths(
    task: OwnTask, rows: Sequence[Mapping[str, Any]], examples: Sequence[Any], again: int | None = None
) -> list[int]:
    """Tokens of each row before anything is cut, all its texts together; of long ones without what a template adds.

    examples: of these rows; none, if training refuses one of them. again: so many of those that may be cut are read
    once more, the others count as one token too long; None: all.
    """
    if not examples:
        return lengths_of_texts(task, rows)
    each = task.read_lengths(examples)
    is_whole = [all(size < most for size, most in zip(sizes, task.longest, strict=True)) for sizes in each]
    full = [row for row, whole in zip(rows, is_whole, strict=True) if not whole]
    found = lengths_of_texts(task, full[:again])
    uncut = iter([*found, *[task.max_length + 1] * (len(full) - len(found))])
    return [sum(sizes) if whole else next(uncut) for sizes, whole in zip(each, is_whole, strict=True)]


def lengths_of_texts(task: OwnTask, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Tokens of each row before anything is cut, all its texts together."""
    found = list[int]()
    for start in range(0, len(rows), 1000):
        texts = [task.texts_read(row) for row in rows[start : start + 1000]]
        together = [text for own in texts for text in own]
        ids = iter(task.vocabulary(together, verbose=False).input_ids if together else ())
        found += [sum(len(next(ids)) for _ in own) for own in texts]
    return found
