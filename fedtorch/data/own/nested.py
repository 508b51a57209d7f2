"""Values within columns that hold objects, named by a path: `body.text` is `text` of the object in column `body`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

DEEPEST = 5
"""Steps of the longest path that is found."""
MOST = 200
"""Keys of an object beyond which it is a table of its own, and its keys name nothing."""
MOST_PATHS = 1000
"""Paths of a file after which no more are looked for, where objects have keys of any kind."""


def leaves(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Paths to all values within objects of a row that are no objects themselves."""
    for name, value in row.items():
        path = f"{before}.{name}" if before else name
        if isinstance(value, Mapping) and path.count(".") < DEEPEST and len(value) <= MOST:
            yield from leaves(value, path)
        elif before:
            yield path


def split_path(path: str, columns: Collection[str]) -> tuple[str, list[str]]:
    """(the column, the steps within it). A column that is called so wins, dots in its name or not.

    Without such a column it is the longest beginning of the path that is one, and if there is none the path itself.
    """
    if path in columns:
        return path, []
    names = path.split(".")
    for size in range(len(names) - 1, 0, -1):
        if (column := ".".join(names[:size])) in columns:
            return column, names[size:]
    return path, []


def value_at(value: Any, steps: Collection[str]) -> Any:
    """Follow these steps to a value; None where one of them leads nowhere."""
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value
