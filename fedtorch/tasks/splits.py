"""Splits of a task: which its manifest names, and which have rows."""

from __future__ import annotations

from collections.abc import Mapping

from fedtorch.tasks.base import Task


def splits_of(task: Task) -> list[str]:
    """Every split that an entry of the task's manifest names, in the order in which they first occur."""
    return list(dict.fromkeys(split for sizes in task.manifest().values() for split in sizes))


def with_rows(task: Task) -> list[str]:
    """Every split of which somebody has a row, in the order in which they first occur."""
    return list(dict.fromkeys(split for sizes in task.manifest().values() for split, rows in sizes.items() if rows))


def has_rows(task: Task, split: str, *, unowned: bool = False) -> bool:
    """Has anybody a row of `split`? unowned: somebody who does not train."""

    def counts(sizes: Mapping[str, int]) -> bool:
        return bool(sizes.get(split)) and not (unowned and sizes.get("train"))

    return any(map(counts, task.manifest().values()))
