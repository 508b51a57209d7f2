"""A partition on disk, to be used elsewhere: a folder with one JSON file per client, in it the ids of its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.errors import DataError
from fedtorch.data.json_file import read_bytes
from fedtorch.data.paths import atomic_folder, check_client_names, folder_name

FORMAT = 1


def write_partition(
    folder: Path, parts: Mapping[str, NDArray[np.int64] | Sequence[int] | Sequence[str]], ids: Sequence[str] = ()
) -> None:
    """Writes `<folder>/<client>.json` for each client: {"format": 1, "client", "clients": how many, "rows": [id, ...]}.

    parts: client -> its rows, as places among `ids` (what `row_ids` gives of all rows), or as ids themselves. A
    client's ids keep the order that its rows have. The folder appears when it is complete, or not at all.

    Raises:
        DataError: the folder exists and is not empty, or a client's name is refused.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise DataError(f"{folder} exists and is not empty; give a new folder, or delete this one")
    check_client_names(parts)
    with atomic_folder(folder) as temporary:
        for client, rows in parts.items():
            record = {
                "format": FORMAT,
                "client": client,
                "clients": len(parts),
                "rows": [row if isinstance(row, str) else ids[row] for row in rows],
            }
            text = json.dumps(record, ensure_ascii=False, indent=0)  # an id per line
            (temporary / f"{folder_name(client)}.json").write_text(text + "\n", encoding="utf-8")


def read_partition(folder: Path) -> dict[str, list[str]]:
    """client -> ids of its rows, as `write_partition` wrote them; clients sorted by name.

    Raises:
        DataError: there is none, a file is not of that form, one is missing, or two clients have the same row.
    """
    parts: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    expected: set[int] = set()
    for path in sorted(Path(folder).glob("*.json")):
        record = _read(path)
        client = record["client"]
        expected.add(record["clients"])
        if client in parts:
            raise DataError(f"{path}: the client {ascii(client)} stands in another file too; delete one of them")
        parts[client] = record["rows"]
        for place, row in enumerate(record["rows"], start=1):
            if row in owner:
                raise DataError(f"{path}: row {place} belongs to the client {ascii(owner[row])} too; write it again")
            owner[row] = client
    if not parts:
        raise DataError(f"{folder} holds no partition: there is no JSON file in it; write one with `write_partition`")
    if expected != {len(parts)}:
        number = " or ".join(map(str, sorted(expected)))
        raise DataError(f"{folder} holds {len(parts)} clients, but its files speak of {number}; write it again")
    check_client_names(parts)
    return dict(sorted(parts.items()))


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_bytes(path, "write the partition again"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({type(error).__name__}); write the partition again") from None
    is_ours = isinstance(record, dict) and record.get("format") == FORMAT
    if not is_ours or not isinstance(record.get("client"), str) or not isinstance(record.get("clients"), int):
        raise DataError(
            f"{path} is no client of a partition; expected `format` {FORMAT}, `client`, `clients` and `rows`"
        )
    if not isinstance(record.get("rows"), list) or not all(isinstance(row, str) for row in record["rows"]):
        raise DataError(f"{path}: `rows` is no list of texts; write the partition again")
    return record
