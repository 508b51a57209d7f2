"""Ids of rows: what a draw depends on in place of the order of the rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from typing import Any

from fedtorch.core.errors import DataError

_ENCODER = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=lambda value: _plain(value)
)


def row_ids(rows: Iterable[Mapping[str, Any]], column: str | None) -> list[str]:
    """One id per row, all different, in the order of the rows; the rows are read once.

    Args:
        column: holds the ids, texts or whole numbers; None: an id is made from the whole row.

    An id that is made is the sha256 of the row as JSON with sorted keys, 32 hexadecimal digits of it (not a faster
    digest: ids are written into files that may be given away, and a short text can be computed back from xxh3). Of
    rows that are equal the second has `-2` appended, the third `-3`. Who knows all but a few words of a row can find
    them from its id by trying.

    Raises:
        DataError: a row has no id, one of another type, or that of an earlier row; or a row without an id cannot be
            written as JSON. Names the rows, counted from 1, and never quotes them.
    """
    return _digests(rows) if column is None else _named(rows, column)


def _named(rows: Iterable[Mapping[str, Any]], column: str) -> list[str]:
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        value = row.get(column)
        if not isinstance(value, int | str) or isinstance(value, bool) or value == "":
            found = "nothing" if value is None or value == "" else f"a {type(value).__name__}"
            raise DataError(
                f"row {number} has {found} in its id column `{column}`; expected a text or a whole number; "
                "fill it in, or name no id column"
            )
        earlier = seen.setdefault(str(value), number)
        if earlier != number:
            raise DataError(
                f"rows {earlier} and {number} have the same value in the id column `{column}`; make ids different, "
                "or name no id column"
            )
    return list(seen)


def _digests(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    ids: list[str] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        try:
            text = _ENCODER.encode(row if isinstance(row, dict) else dict(row))
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, _UnknownType) else type(error).__name__
            raise DataError(
                f"row {number} has no digest: {reason}; name a column with ids, or leave that column out"
            ) from None
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        seen[digest] = count = seen.get(digest, 0) + 1
        ids.append(digest if count == 1 else f"{digest}-{count}")
    return ids


class _UnknownType(TypeError):
    """A value that has no one way to be written."""


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, datetime | date | time):
        return {type(value).__name__: value.isoformat()}
    raise _UnknownType(f"it holds a {type(value).__name__}")
