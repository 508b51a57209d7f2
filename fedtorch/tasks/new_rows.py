"""Rows that are new to a trained model: read from any source, without answers and without clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.init import check_there
from fedtorch.data.own.keys import OwnData
from fedtorch.data.own.rows import Form, check_required, columns_of
from fedtorch.data.own.source import files_of, open_tables, rows_of
from fedtorch.data.own.text_form import TextForm, is_decoded
from fedtorch.text.templates import check_strings, filled

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


@dataclass(frozen=True)
class NewRow:
    """A row of a source that is to be answered, or why it cannot be."""

    number: int
    """its place in the source, from 1"""
    values: dict[str, Any] | None
    """as the task's form has it, with its file and line under `where`; None: it is unusable"""
    problem: str = ""
    """what is wrong with it, with file and line; empty where nothing is"""


def new_rows(source: str, data: OwnData, form: Form) -> Iterator[list[NewRow]]:
    """All rows of a source in its order, in blocks; columns are called as in training.

    Raises:
        ConfigError: the source is not there, or no row has a column that is needed. DataError: a file cannot be read.
    """
    check_there(source)
    roles = {*form.required, *form.optional}
    alone = data.alone(source, {role: column for role, column in data.columns.items() if role in roles})
    form_of_files = text_form_of(source, data)
    with TemporaryDirectory(prefix="fedtorch-") as scratch, open_tables(source, Path(scratch), form_of_files) as tables:
        columns, block, numbers = columns_of(tables, alone, form), list[NewRow](), count(1)
        for table in tables:
            for index, values in rows_of(table, columns):
                block.append(_row(next(numbers), table.where(index), values, columns, form))
                if len(block) == BLOCK:
                    yield block
                    block = []
        if block:
            yield block


def all_usable(rows: Sequence[NewRow]) -> list[dict[str, Any]]:
    """Values of rows, all of which have to be usable.

    Raises:
        DataError: one of them is unusable.
    """
    if problem := next((row.problem for row in rows if row.values is None), ""):
        raise DataError(problem)
    return [row.values for row in rows if row.values is not None]


def text_form_of(source: str, data: OwnData) -> TextForm:
    """How new files are read: separators are found anew, and what is no UTF-8 has the encoding of training."""
    form = replace(data.text_form, separator=None)
    is_utf8 = form.is_utf8 or all(is_decoded(file, TextForm()) for file in files_of(source))
    return replace(form, encoding="utf-8") if is_utf8 else form


def _row(number: int, where: str, values: Any, columns: Mapping[str, str], form: Form) -> NewRow:
    try:
        return NewRow(number, {**_converted(values, columns, form), "where": where})
    except ValueError as error:
        return NewRow(number, None, f"{where}: {error}; correct the row")


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
