"""Rows that are kept on disk while they are dealt; of each, memory holds only what dealing looks at."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtorch.data.own.rows import Form, Row, content_digest

Ints = NDArray[np.int64]
LabelOf = Callable[[Mapping[str, Any]], Any]
Digests = NDArray[np.bytes_]
"""`content_digest` of rows, 16 bytes each"""


class Values:
    """A value per row, of which many rows have the same: a number for each, and every value once."""

    def __init__(self) -> None:
        self._codes = array("I")
        self._places: dict[Hashable, int] = {}
        self._values: list[Any] = []

    def append(self, value: Any) -> None:
        """value: a list counts as equal to one with equal entries."""
        key = json.dumps(value) if isinstance(value, list) else value
        place = self._places.setdefault((type(value), key), len(self._values))
        if place == len(self._values):
            self._values.append(value)
        self._codes.append(place)

    def of(self, indices: Iterable[int] | None = None) -> list[Any]:
        """The values of these rows, or of all."""
        codes = self._codes if indices is None else (self._codes[index] for index in indices)
        return [self._values[code] for code in codes]

    @property
    def distinct(self) -> list[Any]:
        """Every value once, in order of appearance."""
        return self._values


class RowStore:
    """The usable rows of a source: their contents in a file without a name, about 50 bytes of each in memory.

    The file is below `scratch`, a folder that exists, and goes with the store, or with the process if that dies.
    """

    def __init__(self, scratch: Path, form: Form, label_of: LabelOf | None = None) -> None:
        self._form, self._label_of = form, label_of
        self._file = tempfile.TemporaryFile(dir=scratch)
        self._ends = array("Q", [0])
        self._digests = bytearray()
        self.owners = Values()
        """a name per row"""
        self.splits = Values()
        """train, dev or test per row; "" is not said"""
        self.labels = Values()
        """what `label_of` says of each row; None without it"""

    def keep(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Add rows, and hand each on; nothing can be read before all were taken."""
        for row in rows:
            line = json.dumps(row.content).encode()
            self._file.write(line)
            self._ends.append(self._ends[-1] + len(line))
            self._digests += content_digest(self._form.texts(row.content))
            self.owners.append(row.owner)
            self.splits.append(row.split)
            self.labels.append(None if self._label_of is None else self._label_of(row.content))
            yield row
        self._file.flush()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def content(self, index: int) -> dict[str, Any]:
        """Content of one row, read from the file."""
        start, end = self._ends[index : index + 2]
        content: dict[str, Any] = json.loads(os.pread(self._file.fileno(), end - start, start))
        return content

    def rows(self, indices: Iterable[int] | None = None) -> StoredRows:
        """Some of the rows, or all."""
        return StoredRows(self, np.fromiter(range(len(self)) if indices is None else indices, dtype=np.int64))

    def digests(self, indices: Ints) -> Digests:
        """Digests by which rows with the same texts are found."""
        found: Digests = np.frombuffer(self._digests, dtype="S16")[indices]  # a copy: the buffer stays free to grow
        return found


class StoredRows:
    """Some rows of a store, in an order of their own; each is read when its turn comes."""

    def __init__(self, store: RowStore, indices: Ints) -> None:
        self._store = store
        self.indices = indices
        """their places in the store"""

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._store.content, self.indices.tolist())

    @property
    def digests(self) -> Digests:
        """Digests of all rows' texts."""
        return self._store.digests(self.indices)

    @property
    def labels(self) -> list[Any]:
        """None each, of rows that have none."""
        return self._store.labels.of(self.indices)
