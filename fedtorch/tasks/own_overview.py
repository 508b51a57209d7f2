"""An overview of a task's own data: what every client has, and whether training would take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.data.own.overview import NAMED, ClientRows, Overview, set_divergences, split_digests
from fedtorch.data.own.partition_files import write_partition
from fedtorch.data.own.picture import draw
from fedtorch.data.own.prepare import partition_of
from fedtorch.data.own.rows import content_digest
from fedtorch.tasks.own import OwnTask

__all__ = ["Overview", "draw", "overview", "some_rows", "write_partition_of"]


def overview(task: OwnTask) -> Overview:
    """Look at all rows of all clients, as they were prepared.

    What one client's rows make training refuse is in `problems`; the others are looked at all the same.

    Raises:
        ConfigError, DataError: the rows cannot be prepared at all.
    """
    entries, form = task.prepared["clients"], task.form()
    found = Overview(task.kind, {}, _shared(task), task.prepared.get("record", {}).get("left_out", 0))
    digests: dict[tuple[str, str], list[bytes]] = {}
    for client, entry in entries.items():
        facts = found.clients[client] = ClientRows()
        for split in entry["splits"]:
            rows = task.rows(client, split)
            facts.rows[split] = len(rows)
            if split in found.shared and client != next(iter(entries)):
                continue
            digests[client, split] = [content_digest(form.texts(row)) for row in rows]
            _add(facts, task, split, rows)
        if len(found.problems) < NAMED:
            found.problems += _refusals(task, client)
    set_divergences(found)
    split_digests(digests, found, task.folder)
    return found


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
        parts, ids = partition_of(task.data, task.form(), Path(folder), task.label_of)
    return {client: [ids[row] for row in rows.tolist()] for client, rows in parts.items()}


def _add(facts: ClientRows, task: OwnTask, split: str, rows: list[dict[str, Any]]) -> None:
    lengths = task.lengths(rows)
    facts.tokens += lengths
    facts.cut += sum(length > task.max_length for length in lengths) if task.cuts else 0
    if split == "train":
        with suppress(DataError):  # it is among the problems
            facts.unsupervised += task.unsupervised(rows)
        for row in rows:
            label = task.label_of(row)
            if label is not None:
                facts.labels.update(map(str, label) if isinstance(label, list) else [str(label)])


def _shared(task: OwnTask) -> tuple[str, ...]:
    """Splits that have the same rows with every client because they were files of their own."""
    given = {"dev": task.data.splits.dev, "test": task.data.splits.test}
    entries = [entry["splits"] for entry in task.prepared["clients"].values()]
    return tuple(
        split
        for split, value in given.items()
        if isinstance(value, str) and len({entry.get(split, {}).get("sha256") for entry in entries}) == 1
    )


def _refusals(task: OwnTask, client: str) -> list[str]:
    try:
        task.check(client)
    except DataError as error:
        return [str(error)]
    return []
