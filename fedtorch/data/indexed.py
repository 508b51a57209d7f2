"""Random access to a file of JSON lines by row number: what a client needs is read when it is sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.errors import DataError
from fedtorch.data.json_file import has_half_pairs

_AGAIN = "prepare the data again"


def write_index(path: Path) -> None:
    """Write the byte offset of every line of `path`, and of its end, beside it (`<name>.offsets.npy`, int64)."""
    ends = np.flatnonzero(np.frombuffer(path.read_bytes(), dtype=np.uint8) == 0x0A) + 1
    save_array(path.with_suffix(".offsets.npy"), np.concatenate([[0], ends]).astype(np.int64))


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write what `np.load` reads.

    Raises:
        OSError: the disk refuses. numpy's own `save` and `tofile` may say nothing when a disk is full at the last 4 KB
            (*measured*, numpy 2).
    """
    np.save(content := BytesIO(), array, allow_pickle=False)
    path.write_bytes(content.getbuffer())


def load_integers(path: Path, *, mmap: bool = False) -> NDArray[Any]:
    """A list of integers that numpy wrote.

    Raises:
        OSError, ValueError: it is missing, or anything else.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    try:
        found = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (EOFError, SyntaxError, OverflowError, MemoryError, TypeError, IndexError, KeyError) as error:
        raise ValueError(f"{type(error).__name__}") from None  # of a damaged header
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype.kind != "i":
        raise ValueError("it is no list of integers")
    return found


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
            offsets = load_integers(index, mmap=True)
            if (
                not len(offsets)
                or offsets[0]
                or offsets[-1] != self.path.stat().st_size
                or (np.diff(offsets) < 0).any()
            ):
                raise ValueError(f"it does not lead from 0 to {self.path.stat().st_size}, the end of the rows")
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
                line = file.read(end - start)
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if not isinstance(row, dict) or has_half_pairs(line, row):
                    raise DataError(f"{self.path}:{number + 1} is not a JSON object in UTF-8; {_AGAIN}")
                rows.append(row)
        return rows
