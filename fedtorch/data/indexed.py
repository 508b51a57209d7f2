"""Random access to a file of JSON lines by row number: what a client needs is read when it is sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.errors import DataError

_AGAIN = "prepare the data again"


def write_index(path: Path) -> None:
    """Write the byte offset of every line of `path`, and of its end, beside it (`<name>.offsets.npy`, int64)."""
    ends = np.flatnonzero(np.frombuffer(path.read_bytes(), dtype=np.uint8) == 0x0A) + 1
    np.save(path.with_suffix(".offsets.npy"), np.concatenate([[0], ends]).astype(np.int64), allow_pickle=False)


class IndexedRows:
    """The rows of a JSON-lines file with an index; only the index is kept in memory, as a map of its file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Byte offset of every row and of the end, shape (rows + 1,).

        Raises:
            DataError: the index is missing or does not fit the file.
        """
        index = self.path.with_suffix(".offsets.npy")
        try:
            offsets: NDArray[np.int64] = np.load(index, mmap_mode="r", allow_pickle=False)
            if offsets[-1] != self.path.stat().st_size or offsets.dtype != np.int64:
                raise ValueError(f"it ends at {offsets[-1]}, the rows at {self.path.stat().st_size}")
        except (OSError, ValueError) as error:
            raise DataError(f"{index} does not fit {self.path.name} ({error}); {_AGAIN}") from None
        return offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The rows with these numbers, in the given order.

        Raises:
            DataError: a row is no JSON object.
        """
        rows = []
        with self.path.open("rb") as file:
            for number in numbers:
                start, end = int(self.offsets[number]), int(self.offsets[number + 1])
                file.seek(start)
                try:
                    row = json.loads(file.read(end - start))
                except (ValueError, RecursionError):
                    row = None
                if not isinstance(row, dict):
                    raise DataError(f"{self.path}:{number + 1} is not a JSON object; {_AGAIN}")
                rows.append(row)
        return rows
