"""The prepared folder, the one data format that all tasks read: a manifest and one folder per client.

<dir>/manifest.json                             sizes, digests and facts; written last
<dir>/<client>/{train,dev,test}.jsonl           one JSON object a line
<dir>/<client>/client.json                      what all rows of this client share, e.g. its schema
<dir>/tokenizer/                                only if the task brings its own vocabulary
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedtorch.core.errors import DataError
from fedtorch.data.json_file import has_half_pairs
from fedtorch.data.manifest import FORMAT, PREPARE, check_split, read_manifest
from fedtorch.data.paths import SAFE_NAME, atomic_folder, check_client_name, check_client_names, folder_name, inside

__all__ = [
    "atomic_folder",
    "check_client_name",
    "check_client_names",
    "client_file",
    "folder_name",
    "inside",
    "read_client",
    "read_manifest",
    "read_rows",
    "write_client",
    "write_manifest",
]

_log = logging.getLogger(__name__)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # `json.dumps` would make one for every row


def write_client(
    root: Path, client: str, splits: Mapping[str, Iterable[Mapping[str, Any]]], *, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes one client's files below `root` and returns its entry for the manifest.

    Args:
        splits: split name -> rows, read once each; a split may be empty. `facts` goes to `client.json`.

    Raises:
        DataError: a name is refused, the folder exists already, or a row is not plain JSON.
    """
    folder = inside(root, folder_name(client))
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise DataError(f"{folder} exists already: client {client} was written twice") from None
    entry: dict[str, Any] = {"folder": folder.name, "splits": {}}
    for split, rows in splits.items():
        if not SAFE_NAME.fullmatch(split):
            raise DataError(f"split name {ascii(split)} of client {client}: use small letters, digits, `_` and `-`")
        examples, characters, hasher = 0, 0, hashlib.sha256()
        with (folder / f"{split}.jsonl").open("wb") as file:
            for row in rows:
                try:
                    line = _dump(row) + b"\n"
                except (TypeError, ValueError) as error:  # UnicodeEncodeError (a lone surrogate) is a ValueError
                    raise DataError(f"client {client}, split {split}: a row is not plain JSON: {error}") from None
                file.write(line)
                hasher.update(line)
                examples, characters = examples + 1, characters + sum(map(_characters, row.values()))
        entry["splits"][split] = {"examples": examples, "characters": characters, "sha256": hasher.hexdigest()}
    _write_json(folder / "client.json", facts)
    return entry


def write_manifest(
    root: Path, name: str, *, clients: Mapping[str, Mapping[str, Any]], record: Mapping[str, Any]
) -> None:
    """Writes `manifest.json`, last and by rename, so that a folder with a manifest is a complete one.

    Args:
        clients: client -> what `write_client` returned; the order is kept.
        record: free facts about how the folder was made, for the run's record.
    """
    check_client_names(clients)
    _write_json(Path(root) / "manifest.json", {"format": FORMAT, "name": name, "clients": clients, "record": record})


def read_client(root: Path, client: str, *, fields: Mapping[str, type] | None = None) -> dict[str, Any]:
    """The facts all rows of `client` share (`client.json`).

    Args:
        fields: what must be there, of exactly this type.

    Raises:
        DataError: no such client, the file is not a JSON object, or a field is missing or has another type.
    """
    path = client_file(root, client, "client.json")
    facts, problem = _parse(_read(path), fields or {})
    if facts is None:
        raise DataError(f"{path}: {problem}; {PREPARE} again")
    return facts


def read_rows(
    root: Path,
    client: str,
    split: str,
    *,
    fields: Sequence[str] | Mapping[str, type] = ("question", "sql"),
    on_bad_line: Literal["error", "skip"] = "error",
    ceiling: float = 0.01,
) -> list[dict[str, Any]]:
    """All rows of one split, in file order; other fields than the required ones are kept as they are.

    Read with our own loop: `datasets` copies the data in the clear into a cache in the user's home and returns old
    rows for a changed file of equal size and time (seen with datasets 5.2).

    Args:
        fields: required fields; a sequence means strings, a mapping gives each one's exact type.
        on_bad_line: `skip` leaves bad lines out, counts and logs them.
        ceiling: share of bad lines above which `skip` is an error after all.

    Raises:
        DataError: no such client or split; a line is not UTF-8, not a JSON object, lacks a field or has one of the
            wrong type; too many such lines; the file is not the one that the manifest tells of. The message never
            contains text of the row: it may travel to a log that the client's text must not reach.

    An empty file gives an empty list; blank lines are not counted.
    """
    if on_bad_line not in ("error", "skip"):
        raise ValueError(f"on_bad_line is {on_bad_line!r}; expected 'error' or 'skip'")
    expected = dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(fields, str)
    path = client_file(root, client, f"{split}.jsonl")
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    for number, line in enumerate(_read(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        row, problem = _parse(line, expected)
        if row is not None:
            rows.append(row)
            continue
        wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in expected.items())
        message = f"{path}:{number}: {problem}; expected a JSON object in UTF-8 with {wanted}"
        if on_bad_line == "error":
            raise DataError(f"{message}; correct the data that the folder is made of and prepare it again")
        bad.append(message)
    if bad:
        count = f"{len(bad)} of {len(bad) + len(rows)} lines of {path} are unusable, the first: {bad[0]}"
        if len(bad) > ceiling * (len(bad) + len(rows)):
            raise DataError(f"{count}; more than {ceiling:.1%} are not skipped, correct the file or prepare again")
        _log.warning("skipped: %s", count)
    check_split(root, client, split, path, len(rows) + len(bad))
    return rows


def client_file(root: Path, client: str, name: str) -> Path:
    """Path of an existing file of `client`, never outside `root`.

    Raises:
        DataError: it does not exist; the message says which clients and splits do.
    """
    path = inside(root, folder_name(client), name)
    if path.is_file():
        return path
    if path.exists():
        raise DataError(f"{path} is a folder or a special file; expected a file of JSON; {PREPARE} again")
    clients = read_manifest(root)["clients"]
    if client not in clients:
        known = ", ".join(list(clients)[:10]) + (", ..." if len(clients) > 10 else "")
        raise DataError(f"{root} has no client {client!r}; it has {known or 'none'}")
    raise DataError(f"{path} is missing, although the manifest names client {client!r}; {PREPARE} again")


def _parse(line: bytes, expected: Mapping[str, type]) -> tuple[dict[str, Any] | None, str]:
    """The row and an empty string, or None and what is wrong with it."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, f"byte {error.start + 1} is not UTF-8"
    except json.JSONDecodeError as error:
        return None, f"not JSON ({error.msg}, column {error.colno})"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        return None, f"not usable JSON ({type(error).__name__})"
    if not isinstance(row, dict):
        return None, f"a JSON {type(row).__name__}, not an object"
    for name, kind in expected.items():
        if name not in row:
            return None, f"the field {name!r} is missing"
        value = row[name]
        if type(value) is not kind:  # exact: a bool is no int here
            return None, f"the field {name!r} is a {type(value).__name__}, not a {kind.__name__}"
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            return None, f"the field {name!r} has half of a surrogate pair"
    if has_half_pairs(line, row):
        return None, "half of a surrogate pair in it"
    return row, ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its rights, or {PREPARE} again") from None


def _characters(value: Any) -> int:
    """Length of a text, or of all texts in a list."""
    if isinstance(value, list):
        return sum(len(part) for part in value if isinstance(part, str))
    return len(value) if isinstance(value, str) else 0


def _dump(row: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(dict(row)).encode()


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    temporary.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
