"""Rows that are new to a trained model: read from any source, without answers and without clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.init import check_there
from fedtorch.data.own.keys import OwnData
from fedtorch.data.own.rows import Form, check_required, columns_of
from fedtorch.data.own.source import open_tables, rows_of
from fedtorch.tasks.templates import check_strings, filled

BLOCK = 1000
"""Rows that are in memory together."""


@dataclass(frozen=True)
class NewTexts:
    """Form of a new row: texts, and nothing of an answer."""

    required: Sequence[str] = ("text",)
    """roles of the columns that a row has to have"""
    optional: Sequence[str] = ()
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The texts that are there."""
        for name, value in values.items():
            if not isinstance(value, str | None):
                raise ValueError(f"the {name} is a {type(value).__name__}, expected a string")
        return {name: value for name, value in values.items() if value is not None}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """All of them."""
        return list(row.values())


@dataclass(frozen=True)
class NewPrompts:
    """Form of a new row: columns that are filled into a template, or one text that is read as it is."""

    required: Sequence[str]
    """roles of the columns that a row has to have; without a template the first one is read"""
    template: str | None
    """a prompt with `{ROLE}` for each column; None: there is none"""
    optional: Sequence[str] = ()
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """source."""
        check_strings({name: values[name] for name in self.required})
        return {"source": filled(self.template, values, self.required[0])}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """Texts that are read."""
        return [row["source"]]


def new_rows(source: str, data: OwnData, form: Form) -> Iterator[list[dict[str, Any]]]:
    """The rows of a source in its order, in blocks; columns are called as in training. `where` of each is its place.

    Raises:
        ConfigError: the source or a column is not there. DataError: a row is unusable; names file and line.
    """
    check_there(source)
    roles = {*form.required, *form.optional}
    alone = data.alone(source, {role: column for role, column in data.columns.items() if role in roles})
    with TemporaryDirectory(prefix="fedtorch-") as scratch, open_tables(source, Path(scratch)) as tables:
        columns, block = columns_of(tables, alone, form), list[dict[str, Any]]()
        for table in tables:
            for index, values in rows_of(table, columns):
                try:
                    block.append({**_converted(values, columns, form), "where": table.where(index)})
                except ValueError as error:
                    raise DataError(f"{table.where(index)}: {error}; correct the row") from None
                if len(block) == BLOCK:
                    yield block
                    block = []
        if block:
            yield block


def _converted(values: Any, columns: Mapping[str, str], form: Form) -> dict[str, Any]:
    if isinstance(values, ValueError):
        raise values
    check_required(values, columns, form)
    return form.convert(values)


def refuse_perplexity(kind: str, asked: bool) -> None:
    """For a task that has none.

    Raises:
        ConfigError: it is asked for.
    """
    if asked:
        raise ConfigError(f"--perplexity is given but the run's task.name is {kind}; it is for causal_lm")
