"""Ids of rows: what a draw depends on in place of the order of the rows."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedtorch.core.errors import DataError


class RowIds(Sequence[str]):
    """Ids in order, one behind the other in one buffer: a million strings would take 80 MB."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._copies: dict[int, int] = {}

    def append(self, text: str) -> None:
        """Add one behind the others."""
        self._text += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        start, end = self._ends[index : index + 2]
        text = self._text[start:end].decode("utf-8", "surrogatepass")
        return f"{text}-{self._copies[index]}" if index in self._copies else text

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def repeats(self) -> Iterator[tuple[int, int]]:
        """(place, how many equal ones stand before it) of all that stand there again, in order of their digests."""
        order, again = by_digest(self)
        last, before = -1, 0
        for place in again.tolist():
            before = before + 1 if place == last + 1 else 1
            last = place
            yield int(order[place]), before

    def number_copies(self) -> None:
        """Number equal ids: the second gets `-2`, the third `-3`."""
        self._copies = {place: before + 1 for place, before in self.repeats()}


def by_digest(ids: Iterable[bytes | str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(places of the ids sorted by their digests, those of this order whose id is equal to the one before)."""
    joined = bytearray()  # `join` would make a list of all first
    for one in ids:
        joined += xxhash.xxh3_128_digest(one if isinstance(one, bytes) else one.encode("utf-8", "surrogatepass"))
    digests = np.frombuffer(joined, dtype=">u8").reshape(-1, 2).astype(np.uint64)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    inside = digests[order]
    return order, np.flatnonzero((inside[1:] == inside[:-1]).all(axis=1)) + 1


def row_ids(rows: Iterable[Mapping[str, Any]], column: str | None) -> RowIds:
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


def _named(rows: Iterable[Mapping[str, Any]], column: str) -> RowIds:
    ids = RowIds()
    for number, row in enumerate(rows, start=1):
        value = row.get(column)
        if not isinstance(value, int | str) or isinstance(value, bool) or value == "":
            found = "nothing" if value is None or value == "" else f"a {type(value).__name__}"
            raise DataError(
                f"row {number} has {found} in its id column `{column}`; expected a text or a whole number; "
                "fill it in, or name no id column"
            )
        ids.append(str(value))
    if repeats := {place for place, _ in ids.repeats()}:
        later = min(repeats)
        earlier = next(place for place, text in enumerate(ids) if text == ids[later])
        raise DataError(
            f"rows {earlier + 1} and {later + 1} have the same value in the id column `{column}`; make ids different, "
            "or name no id column"
        )
    return ids


def _digests(rows: Iterable[Mapping[str, Any]]) -> RowIds:
    ids = RowIds()
    for number, row in enumerate(rows, start=1):
        try:
            text = _ENCODER.encode(row if isinstance(row, dict) else dict(row))
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, _UnknownType) else type(error).__name__
            raise DataError(
                f"row {number} has no digest: {reason}; name a column with ids, or leave that column out"
            ) from None
        ids.append(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32])
    ids.number_copies()
    return ids


class _UnknownType(TypeError):
    """A value that has no one way to be written."""


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, datetime | date | time):
        return {type(value).__name__: value.isoformat()}
    raise _UnknownType(f"it holds a {type(value).__name__}")


_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_plain)
