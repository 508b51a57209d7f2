"""A first config for a data file, and the rows that its task cannot use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedtorch.core.errors import DataError
from fedtorch.data.own.guessed import Counted, Wishes
from fedtorch.data.own.init import Proposal, name_for, propose, scratch_beside
from fedtorch.data.own.prepare import split_sources
from fedtorch.data.own.rows import usable_rows
from fedtorch.data.own.source import open_tables
from fedtorch.data.own.text_form import TextForm
from fedtorch.tasks.own import OwnTask

__all__ = [
    "Counted",
    "Proposal",
    "TextForm",
    "Unusable",
    "Wishes",
    "name_for",
    "propose",
    "scratch_beside",
    "unusable_rows",
]

NAMED = 3
"""Rows that are named."""


@dataclass
class Unusable:
    """Rows of a source that a task cannot use."""

    rows: int = 0
    """in all"""
    most: int = 0
    """in one source; each may have so many"""
    bad: int = 0
    """of all rows"""
    named: list[str] = field(default_factory=list)
    """the first ones, with file and line"""


def unusable_rows(task: OwnTask, scratch: Path) -> Unusable:
    """Read all rows as the task does, those of dev and test in files of their own too.

    Raises:
        DataError: no row can be used.
    """
    found, form = Unusable(), task.form()
    for source, data in split_sources(task.data):
        problems = list[str]()
        with open_tables(source, scratch, data.text_form) as tables:
            usable = sum(1 for _ in usable_rows(tables, data, form, problems))
        if not usable:
            raise DataError("\n  ".join(["no row can be used:", *problems[:NAMED]]))
        found.rows += usable + len(problems)
        found.bad += len(problems)
        found.most = max(found.most, len(problems))
        found.named += problems[: NAMED - len(found.named)]
    return found
