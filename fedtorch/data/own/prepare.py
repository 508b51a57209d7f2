"""From a source of rows to a prepared folder: one file per client and split, and a manifest."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fedtorch.core.errors import DataError
from fedtorch.core.files import hash_file
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.data.own.keys import SPLITS, Hub, OwnData, SplitRule
from fedtorch.data.own.partition import deal
from fedtorch.data.own.persons import OfPersons
from fedtorch.data.own.row_ids import row_ids
from fedtorch.data.own.row_store import Ints, LabelOf, RowStore, StoredRows
from fedtorch.data.own.rows import ID, Form, is_file, read_rows
from fedtorch.data.own.source import column_names, files_of, open_tables
from fedtorch.data.own.split import classes_of, split_names
from fedtorch.data.paths import atomic_folder, check_client_names

FOLDER = "own"
"""Below `data/`, before the digest of what a folder was made of."""

log = logging.getLogger(__name__)

Train = Callable[[Iterable[str], Path], None]


@dataclass
class Dealt:
    """Rows by client and split, and what was noticed on the way."""

    clients: dict[str, dict[str, StoredRows]]
    """client -> split -> rows"""
    left_out: list[str] = field(default_factory=list)
    """rows that could not be used: where, and why"""
    duplicates: dict[str, int] = field(default_factory=dict)
    """client -> rows that it has more than once, counted from the second time"""
    leaks: int = 0
    """rows of a client's dev or test that stand in some client's train as well"""


def folder_of(data: OwnData, name: str, settings: Mapping[str, Any]) -> Path:
    """Where the rows of these sources and settings lie once they are prepared.

    settings: what else decides about the rows. The sources' bytes are read, so a changed file makes another folder.

    Raises:
        ConfigError: the source names no file.
    """
    hasher = hashlib.sha256(json.dumps([data.options(), settings], sort_keys=True, default=str).encode())
    if not isinstance(data.source, Hub):
        extra = [value for value in (data.splits.dev, data.splits.test) if isinstance(value, str)]
        for path in [*files_of(data.source), *(file for text in extra if is_file(text) for file in files_of(text))]:
            hasher.update(f"{path}\0".encode("utf-8", "surrogateescape"))
            hasher.update(hash_file(path, xxhash.xxh3_128()).digest())
    return Path("data") / FOLDER / f"{name}-{hasher.hexdigest()[:16]}"


def prepare(
    out: Path,
    name: str,
    data: OwnData,
    form: Form,
    *,
    label_of: LabelOf | None = None,
    train: Train | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[int]:
    """Write the prepared folder `out` and return how many rows each client has; several processes may do so at once.

    label_of: the label of a converted row, for splits that are stratified and rules that look at labels. train: makes a
    vocabulary of all training texts in the folder it is given. settings: what else decides about the rows, for the
    record.

    Raises:
        ConfigError, DataError: see `read_rows` and `deal`; nothing is left behind.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DataError(
            f"{out.parent} is where prepared rows go, but it or a folder above is a file; move it"
        ) from None
    dealt = deal_rows(data, form, out.parent, label_of)
    with atomic_folder(out) as folder:
        entries = {client: write_client(folder, client, splits, facts={}) for client, splits in dealt.clients.items()}
        if label_of is not None:
            for client, splits in dealt.clients.items():
                entries[client]["labels"] = _label_counts(splits)
        if train is not None:
            rows = (row for splits in dealt.clients.values() for row in splits["train"])
            train((text for row in rows for text in form.texts(row)), folder / "tokenizer")
        record = {
            "options": json.loads(json.dumps(data.options(), default=str)),
            "left_out": len(dealt.left_out),
            "duplicates": sum(dealt.duplicates.values()),
            "leaks": dealt.leaks,
            "settings": json.loads(json.dumps(dict(settings or {}), default=str)),
        }
        write_manifest(folder, name, clients=entries, record=record)
    return [sum(map(len, splits.values())) for splits in dealt.clients.values()]


def deal_rows(data: OwnData, form: Form, scratch: Path, label_of: LabelOf | None = None) -> Dealt:
    """Read, deal and split all rows."""
    store, problems, ids, parts = _dealt(data, form, scratch, label_of)
    elsewhere = {
        split: _elsewhere_rows(text, data, form, scratch, label_of, set(parts))
        for split, text in _elsewhere(data).items()
    }
    shared = {split: rows for split, rows in elsewhere.items() if isinstance(rows, StoredRows)}
    result, there = Dealt({}, problems), set(store.splits.distinct)
    for client, indices in parts.items():
        if client in data.splits.held_out:
            names = ["test"] * len(indices)
        else:
            names = split_names(
                store.splits.of(indices), store.labels.of(indices), [ids[i] for i in indices], data, there
            )
        result.clients[client] = {split: store.rows(indices[[name == split for name in names]]) for split in SPLITS}
        if client not in data.splits.held_out:
            result.clients[client] |= shared
    for split, rows in elsewhere.items():
        if not isinstance(rows, StoredRows):
            _deal_out(result, split, rows, store, data.splits)
    _notice(result, shared)
    if data.splits.stratify:
        _tell_few(result, data.splits)
    return result


def partition_of(
    data: OwnData, form: Form, scratch: Path, label_of: LabelOf | None = None
) -> tuple[dict[str, Ints], Sequence[str]]:
    """(client -> its rows, as places among the ids; ids of all usable rows); splits that are files are no part of it.

    Raises:
        ConfigError, DataError: see `read_rows` and `deal`.
    """
    _, _, ids, parts = _dealt(data, form, scratch, label_of)
    return parts, ids


def _dealt(
    data: OwnData, form: Form, scratch: Path, label_of: LabelOf | None
) -> tuple[RowStore, list[str], Sequence[str], dict[str, Ints]]:
    """Usable rows, what is wrong with the others, ids, and client -> its rows."""
    store, problems = RowStore(scratch, form, label_of), list[str]()
    with open_tables(data.source, scratch, data.text_form) as tables:
        rows = store.keep(read_rows(tables, data, form, problems))
        ids = row_ids((row.content if data.id is None else {ID: str(row.id)} for row in rows), data.id and ID)
    if not len(store):
        raise DataError(f"task.data.source {data.source} has no usable row")
    labels = None if label_of is None else classes_of(store.labels.of(), False)
    owners = store.owners.of() if data.clients.by is not None else None
    parts = deal(data.clients, ids=ids, labels=labels, owners=owners, seed=data.seed)
    check_client_names(parts)
    return store, problems, ids, parts


def _notice(dealt: Dealt, shared: Mapping[str, StoredRows]) -> None:
    """Count rows that a client has twice, and rows to be evaluated that somebody trains on."""
    for client, splits in dealt.clients.items():
        own = np.concatenate([rows.digests for split, rows in splits.items() if rows is not shared.get(split)])
        if twice := len(own) - len(np.unique(own)):
            dealt.duplicates[client] = twice
    if dealt.duplicates:
        worst = max(dealt.duplicates, key=dealt.duplicates.__getitem__)
        log.warning("%d rows stand more than once among one client's, most of them (%d) at %s; they are kept",
                    sum(dealt.duplicates.values()), dealt.duplicates[worst], worst)  # fmt: skip
    trained = np.unique(np.concatenate([splits["train"].digests for splits in dealt.clients.values()]))
    leaks, seen = Counter[tuple[str, str]](), set[str]()
    for client, splits in dealt.clients.items():
        for split, rows in splits.items():
            is_shared = rows is shared.get(split)
            if split != "train" and not (is_shared and split in seen) and len(trained):
                seen |= {split} if is_shared else set()  # the same rows at every client
                places = np.searchsorted(trained, rows.digests)
                leaks[client, split] = int((trained[np.minimum(places, len(trained) - 1)] == rows.digests).sum())
    dealt.leaks = leaks.total()
    if dealt.leaks:
        (client, split), count = leaks.most_common(1)[0]
        log.warning(
            "%d rows of dev and test are in some client's train too, most (%d) in %s of %s: their scores are too good",
            dealt.leaks, count, split, client,
        )  # fmt: skip


def _tell_few(dealt: Dealt, rule: SplitRule) -> None:
    """Say where a client has too few rows of a label for all its splits, and what became of them."""
    few = [
        f"{label} at {client}"
        for client, splits in dealt.clients.items()
        if client not in rule.held_out
        for label, count in Counter(
            str(one)
            for rows in splits.values()
            for found in rows.labels
            for one in (found if isinstance(found, list) else [found])
        ).items()
        if count < len(SPLITS)
    ]
    if few:
        log.info(
            "task.data.splits.stratify: labels of which a client has one or two rows, too few for all splits: %s%s; "
            "train keeps one, test has the second",
            ", ".join(few[:5]), f" and {len(few) - 5} more" if len(few) > 5 else "",
        )  # fmt: skip


def _label_counts(splits: Mapping[str, StoredRows]) -> dict[str, int]:
    """Label -> rows of train that have it; 0 for one that only dev and test have."""
    counts: Counter[str] = Counter()
    for split, rows in splits.items():
        for found in rows.labels:
            for label in found if isinstance(found, list) else [found]:
                counts[str(label)] += split == "train"
    return dict(sorted(counts.items()))


def _elsewhere(data: OwnData) -> dict[str, str]:
    """Splits that are files of their own -> the file or glob; names of splits of the source are no files."""
    return {
        name: value
        for name, value in (("dev", data.splits.dev), ("test", data.splits.test))
        if isinstance(value, str) and is_file(value)
    }


def split_sources(data: OwnData) -> list[tuple[Any, OwnData]]:
    """(a source, the keys by which it is read): of the rows that are dealt, and of splits that are files."""
    others = [(text, data.alone(text)) for text in _elsewhere(data).values()]
    return [(data.source, data), *others]


def _elsewhere_rows(
    text: str, data: OwnData, form: Form, scratch: Path, label_of: LabelOf | None, clients: Collection[str]
) -> StoredRows | dict[str, StoredRows]:
    """The rows of a split that is a file of its own: client -> its rows, or all of them for every client.

    They are dealt where the file has the column of `clients.by`, or, with clients by file, where every one of several
    files is named after a client.
    """
    store, by = RowStore(scratch, form, label_of), data.clients.by
    with open_tables(text, scratch, data.text_form) as tables:
        rule, form = data.alone(text), form
        if data.person in column_names(tables):
            rule = replace(rule, person=data.person)
        elif isinstance(form, OfPersons):  # nobody's rows may do without
            form = form.form
        if by == "file":
            is_dealt = {table.owner for table in tables} <= set(clients)
        elif is_dealt := by is not None and by in column_names(tables):
            rule = replace(rule, clients=data.clients)
        for _ in store.keep(read_rows(tables, rule, form, [])):
            pass
    if not is_dealt:
        return store.rows()
    places: dict[str, list[int]] = {}
    for place, owner in enumerate(store.owners.of()):
        places.setdefault(owner, []).append(place)
    return {owner: store.rows(found) for owner, found in places.items()}


def _deal_out(dealt: Dealt, split: str, rows: Mapping[str, StoredRows], store: RowStore, rule: SplitRule) -> None:
    """Give each client its rows of a split that came as a file; one that has no others is evaluated, never trained."""
    strange = sorted(set(rows) - set(dealt.clients))
    check_client_names([*dealt.clients, *strange])
    if strange:
        log.warning(
            "%d of the clients in task.data.splits.%s have no rows in task.data.source (%s%s); they are evaluated and "
            "never trained",
            len(strange), split, ", ".join(strange[:5]), ", ..." if len(strange) > 5 else "",
        )  # fmt: skip
    for client in strange:
        dealt.clients[client] = {name: store.rows([]) for name in SPLITS}
    for client, splits in dealt.clients.items():
        if client in rule.held_out:
            continue
        splits[split] = rows.get(client, store.rows([]))
