"""From a source of rows to a prepared folder: one file per client and split, and a manifest."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.data.own.keys import SPLITS, Hub, OwnData
from fedtorch.data.own.partition import deal
from fedtorch.data.own.row_ids import row_ids
from fedtorch.data.own.rows import ID, Form, Place, content_digest, is_file, read_rows
from fedtorch.data.own.source import files_of, open_tables
from fedtorch.data.paths import atomic_folder, check_client_names

FOLDER = "own"
"""Below `data/`, before the digest of what a folder was made of."""

log = logging.getLogger(__name__)

LabelOf = Callable[[Mapping[str, Any]], Any]
Train = Callable[[Iterable[str], Path], None]


@dataclass
class Dealt:
    """Rows by client and split, and what was noticed on the way."""

    clients: dict[str, dict[str, list[dict[str, Any]]]]
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
    hasher = hashlib.sha256(json.dumps([asdict(data), settings], sort_keys=True, default=str).encode())
    if not isinstance(data.source, Hub):
        extra = [value for value in (data.splits.dev, data.splits.test) if isinstance(value, str)]
        for path in [*files_of(data.source), *(file for text in extra if is_file(text) for file in files_of(text))]:
            hasher.update(f"{path}\0".encode("utf-8", "surrogateescape"))
            hasher.update(_digest(path))
    return Path("data") / FOLDER / f"{name}-{hasher.hexdigest()[:16]}"


def prepare(
    out: Path, name: str, data: OwnData, form: Form, *, label_of: LabelOf | None = None, train: Train | None = None
) -> None:
    """Write the prepared folder `out`; several processes may do so at once.

    label_of: the label of a converted row, for splits that are stratified and rules that look at labels. train: makes a
    vocabulary of all training texts in the folder it is given.

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
                entries[client]["labels"] = _label_counts(splits, label_of)
        if train is not None:
            rows = (row for splits in dealt.clients.values() for row in splits["train"])
            train((text for row in rows for text in form.texts(row)), folder / "tokenizer")
        record = {
            "options": json.loads(json.dumps(asdict(data), default=str)),
            "left_out": len(dealt.left_out),
            "duplicates": sum(dealt.duplicates.values()),
            "leaks": dealt.leaks,
        }
        write_manifest(folder, name, clients=entries, record=record)


def deal_rows(data: OwnData, form: Form, scratch: Path, label_of: LabelOf | None = None) -> Dealt:
    """Read, deal and split all rows."""
    places, problems, ids, parts = _dealt(data, form, scratch, label_of)
    shared = {split: _shared(value, data, form, scratch) for split, value in _elsewhere(data).items()}
    if unknown := [client for client in data.splits.held_out if client not in parts]:
        raise ConfigError(
            f"task.data.splits.held_out names {unknown[0]!r}, who is no client; there are {', '.join(list(parts)[:10])}"
        )
    result, there = Dealt({}, problems), {place.split for place in places}
    for client, indices in parts.items():
        split = _split(client, [places[i] for i in indices], [ids[i] for i in indices], data, label_of, there)
        result.clients[client] = split
    for name, rows in shared.items():  # of all clients alike
        for splits in result.clients.values():
            splits[name] = rows
    _notice(result, form, set(shared))
    return result


def partition_of(
    data: OwnData, form: Form, scratch: Path, label_of: LabelOf | None = None
) -> tuple[dict[str, Any], list[str]]:
    """(client -> its rows, as places among the ids; ids of all usable rows); splits that are files are no part of it.

    Raises:
        ConfigError, DataError: see `read_rows` and `deal`.
    """
    _, _, ids, parts = _dealt(data, form, scratch, label_of)
    return parts, ids


def _dealt(
    data: OwnData, form: Form, scratch: Path, label_of: LabelOf | None
) -> tuple[list[Place], list[str], list[str], dict[str, Any]]:
    """Usable rows, what is wrong with the others, ids, and client -> its rows."""
    with open_tables(data.source, scratch) as tables:
        places, problems = read_rows(tables, data, form)
    if not places:
        raise DataError(f"task.data.source {data.source} has no usable row")
    ids = row_ids([place.row if data.id is None else {ID: str(place.id)} for place in places], data.id and ID)
    labels = None if label_of is None else [label_of(place.row) for place in places]
    rule = data.clients
    owners = [place.owner for place in places] if rule.by is not None else None
    parts = deal(rule, ids=ids, labels=_hashable(labels), owners=owners, seed=data.seed)
    check_client_names(parts)
    return places, problems, ids, parts


def _split(
    client: str,
    places: Sequence[Place],
    ids: Sequence[str],
    data: OwnData,
    label_of: LabelOf | None,
    there: Collection[str],
) -> dict[str, list[dict[str, Any]]]:
    """A client's rows by split, each in the order of the source; drawn by (seed, row id), so that rows may be added.

    there: splits that rows of the source are in already; only others are drawn, from rows of none or of train.
    """
    if client in data.splits.held_out:
        return {"train": [], "dev": [], "test": [place.row for place in places]}
    names = [place.split if place.split != "train" else "" for place in places]
    free = [i for i, name in enumerate(names) if not name]
    classes: dict[Any, list[int]] = {}
    for i in free:
        label = None if label_of is None else label_of(places[i].row)
        classes.setdefault(json.dumps(label) if isinstance(label, list) else label, []).append(i)
    shares = {name: value for name, value in (("test", data.splits.test), ("dev", data.splits.dev))}
    drawn = {i: hashlib.sha256(f"{data.seed}\0{ids[i]}".encode()).digest() for i in free}
    for split, share in shares.items():
        if not isinstance(share, str) and data.splits.column is None and share and split not in there:
            _take(split, share, classes, drawn, names, len(free))
    return {split: [place.row for place, name in zip(places, names, strict=True) if (name or "train") == split]
            for split in SPLITS}  # fmt: skip


def _take(
    split: str, share: float, classes: Mapping[Any, Sequence[int]], drawn: Mapping[int, bytes], names: list[str], n: int
) -> None:
    """Give `split` its share of the rows, of every class alike as far as whole rows allow."""
    wanted = int(share * n + 0.5)
    free = {label: sorted((i for i in rows if not names[i]), key=drawn.__getitem__) for label, rows in classes.items()}
    exact = {label: share * len(rows) for label, rows in classes.items()}
    takes = {label: min(int(value), len(free[label])) for label, value in exact.items()}
    able = [label for label in classes if len(free[label]) > takes[label]]  # another split may have taken all
    by_rest = sorted(able, key=lambda label: (takes[label] - exact[label], drawn[free[label][0]]))
    for label in by_rest[: wanted - sum(takes.values())]:
        takes[label] += 1
    for label, count in takes.items():
        for i in free[label][:count]:
            names[i] = split


def _notice(dealt: Dealt, form: Form, shared: set[str]) -> None:
    """Count rows that a client has twice, and rows to be evaluated that somebody trains on."""
    trained: set[bytes] = set()
    digests: dict[tuple[str, str], list[bytes]] = {}
    seen: set[str] = set()
    for client, splits in dealt.clients.items():
        for split, rows in splits.items():
            if split in seen:
                continue  # the same rows at every client
            seen |= {split} & shared
            found = [content_digest(form.texts(row)) for row in rows]
            digests[client, split] = found
            if split == "train":
                trained |= set(found)
        own = [digest for split in SPLITS if split not in shared for digest in digests[client, split]]
        if twice := len(own) - len(set(own)):
            dealt.duplicates[client] = twice
    leaks = Counter(
        {key: sum(digest in trained for digest in found) for key, found in digests.items() if key[1] != "train"}
    )
    dealt.leaks = sum(leaks.values())
    if dealt.duplicates:
        worst = max(dealt.duplicates, key=dealt.duplicates.__getitem__)
        log.warning("%d rows stand more than once among one client's, most of them (%d) at %s; they are kept",
                    sum(dealt.duplicates.values()), dealt.duplicates[worst], worst)  # fmt: skip
    if dealt.leaks:
        (client, split), count = leaks.most_common(1)[0]
        log.warning(
            "%d rows of dev and test are in some client's train too, most (%d) in %s of %s: their scores are too good",
            dealt.leaks, count, split, client,
        )  # fmt: skip


def _label_counts(splits: Mapping[str, Sequence[Mapping[str, Any]]], label_of: LabelOf) -> dict[str, int]:
    """Label -> rows of train that have it; 0 for one that only dev and test have."""
    counts: Counter[str] = Counter()
    for split, rows in splits.items():
        for row in rows:
            found = label_of(row)
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


def _shared(text: str, data: OwnData, form: Form, scratch: Path) -> list[dict[str, Any]]:
    from dataclasses import replace

    from fedtorch.data.own.client_rule import ClientRule
    from fedtorch.data.own.keys import SplitRule

    alone = replace(data, source=text, clients=ClientRule(by="file"), splits=SplitRule(0.0, 0.0), id=None)
    with open_tables(text, scratch) as tables:
        return [place.row for place in read_rows(tables, alone, form)[0]]


def _hashable(labels: Sequence[Any] | None) -> list[Any] | None:
    if labels is None:
        return None
    return [json.dumps(label) if isinstance(label, list) else label for label in labels]


def _digest(path: Path) -> bytes:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.digest()
