"""Columns that a task wants of a row, and the rows of a source as it wants them."""

from __future__ import annotations

import hashlib
import logging
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.keys import SPLITS, OwnData
from fedtorch.data.own.source import Table, column_names, rows_of

OWNER, ID, SPLIT = "client", "id", "split"
"""Roles of columns that no task has."""
PERSON = "person"
"""Role of the column that says which person a row is about, and its name in a prepared row."""
NAMED = 20
"""Rows that messages name at most."""
SPLIT_NAMES = {**{name: name for name in SPLITS}, "validation": "dev", "valid": "dev", "val": "dev"}

log = logging.getLogger(__name__)
_NAMES, _LONGEST_NAME = 20, 40  # columns in a message, and characters of one


class Form(Protocol):
    """Columns that a task wants of a row."""

    @property
    def required(self) -> Sequence[str]:
        """Roles of columns that every row has; `convert` is not asked about None and empty strings there."""
        ...

    @property
    def optional(self) -> Sequence[str]:
        """Roles of columns that are used where the source has them."""
        ...

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The row as the task reads it, plain JSON; values: role -> what the column holds.

        Raises:
            ValueError: what is wrong with it and what was expected, without quoting a text.
        """
        ...

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """All texts of a converted row, for a vocabulary and for finding rows that are the same."""
        ...


@dataclass(frozen=True)
class Row:
    """A row that was taken, with all that is said of it beside its content."""

    content: dict[str, Any]
    """as the task reads it"""
    owner: str
    """whose it is, where a column or its file says so"""
    id: Any
    """what the column of ids holds; None without one"""
    split: str
    """train, dev or test; "" is not said"""


def columns_of(tables: Sequence[Table], data: OwnData, form: Form) -> dict[str, str]:
    """Role -> column, of all roles that the source has.

    Raises:
        ConfigError: a role that no task knows, or a column that the source lacks, with the nearest name.
    """
    there, owner = column_names(tables), data.clients.by
    roles = [*form.required, *form.optional]
    if strange := [role for role in data.columns if role not in roles]:
        near = get_close_matches(strange[0], roles, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"choose among {', '.join(roles)}"
        raise ConfigError(f"task.data.columns has `{strange[0]}`, of which this task knows nothing; {hint}")
    wanted = {role: data.columns.get(role, role) for role in roles if role in data.columns or role in form.required}
    wanted |= {role: role for role in form.optional if role not in wanted and role in there}
    keys = {role: f"task.data.columns.{role}" for role in wanted}
    if data.person is not None and PERSON in form.required:
        wanted[PERSON], keys[PERSON] = data.person, "privacy.unit.column"
    for role, column, key in (
        (OWNER, owner if owner not in (None, "file") else None, "task.data.clients.by"),
        (ID, data.id, "task.data.id"),
        (SPLIT, data.splits.column, "task.data.splits.column"),
    ):
        if column is not None:
            wanted[role], keys[role] = column, key
    for role, column in wanted.items():
        if column not in there:
            near = get_close_matches(column, there, 1)
            hint = f"did you mean `{near[0]}`?" if near else _listed(there)
            raise ConfigError(f"{keys[role]}: {tables[0].name} has no column `{column}`; {hint}")
    return wanted


def _listed(columns: Sequence[str]) -> str:
    """The names of the columns for a message; what is as long as a text may be one, of a file without a header."""
    names = [column if len(column) <= _LONGEST_NAME else f"one of {len(column)} letters" for column in columns]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    advice = " (is the first line a header?)" if any(len(column) > _LONGEST_NAME for column in columns) else ""
    return f"there are {', '.join(names[:_NAMES])}{more}{advice}" if names else "there are no columns"


def read_rows(tables: Sequence[Table], data: OwnData, form: Form, problems: list[str]) -> Iterator[Row]:
    """All usable rows of a source in its order, one at a time.

    problems: gets what is wrong with the others, at most `skip_bad_rows`, each with file and line.

    Raises:
        DataError: at the end, if more rows are unusable; names the first ones.
    """
    yield from usable_rows(tables, data, form, problems, most=data.skip_bad_rows + NAMED)
    if len(problems) > data.skip_bad_rows:
        more = "" if len(problems) <= NAMED else ", and more"
        raise DataError(
            "\n  ".join(["rows that cannot be used" + more + ":", *problems[:NAMED]])
            + "\ncorrect them, or let task.data.skip_bad_rows leave out so many"
        )
    for problem in problems[:NAMED]:
        log.warning("left out: %s", problem)
    if len(problems) > NAMED:
        log.warning("left out: %d rows more", len(problems) - NAMED)


def usable_rows(
    tables: Sequence[Table], data: OwnData, form: Form, problems: list[str], most: float = math.inf
) -> Iterator[Row]:
    """Read as `rows` does, whatever `skip_bad_rows` says. most: problems after which a table is read no further."""
    columns = columns_of(tables, data, form)
    for table in _used(tables, data):
        split = split_of(table.split, data)
        for index, values in rows_of(table, columns):
            try:
                if isinstance(values, ValueError):
                    raise values
                row = _row(values, columns, Row({}, table.owner, None, split), form)
            except ValueError as error:
                problems.append(f"{table.where(index)}: {error}")
                if len(problems) > most:
                    break
                continue
            yield row


def _row(values: dict[str, Any], columns: Mapping[str, str], default: Row, form: Form) -> Row:
    """The row of these values; default: what its file says of its owner and its split."""
    owner, split = default.owner, default.split
    if OWNER in values:
        given = values.pop(OWNER)
        if given is None or not str(given).strip():
            raise ValueError(f"the column `{columns[OWNER]}` is empty, so the row has no client")
        owner = _owner(given, columns[OWNER])
    if SPLIT in values:
        split = SPLIT_NAMES.get(str(values.pop(SPLIT)), "")
        if not split:
            raise ValueError(f"the column `{columns[SPLIT]}` has another value than train, dev (validation) and test")
    identity = values.pop(ID, None)
    if ID in columns and (identity is None or not str(identity).strip()):
        raise ValueError(f"the column `{columns[ID]}` is empty, so the row has no id")
    check_required(values, columns, form)
    return Row(form.convert(values), owner, identity, split)


def _owner(given: Any, column: str) -> str:
    """The name of a row's client: a text or a number.

    Raises:
        ValueError: it is something else, such as true, inf or a list.
    """
    if isinstance(given, dict | list | tuple | set | bool | bytes) or (isinstance(given, float) and given - given != 0):
        kind = "a number that is not finite" if isinstance(given, float) else f"a {type(given).__name__}"
        raise ValueError(f"the column `{column}` holds {kind}; a client's name is a text or a number")
    return str(given)


def check_required(values: Mapping[str, Any], columns: Mapping[str, str], form: Form) -> None:
    """Raises ValueError if a column that every row must fill is missing or empty. columns: role -> column."""
    for role in form.required:
        if values[role] is None or values[role] == "":
            raise ValueError(f"`{columns[role]}` is missing or empty")


def split_of(name: str, data: OwnData) -> str:
    """train, dev or test of what the source calls a split; its own name if it is none of them; "" has none."""
    named = {value: split for split, value in (("dev", data.splits.dev), ("test", data.splits.test)) if value == name}
    return named.get(name) or SPLIT_NAMES.get(name, name)


def _used(tables: Sequence[Table], data: OwnData) -> list[Table]:
    """The tables without those of splits that are none of ours.

    Raises:
        ConfigError: a split is named that the source does not have.
    """
    there = [table.split for table in tables if table.split]
    for key, value in (("dev", data.splits.dev), ("test", data.splits.test)):
        if isinstance(value, str) and not is_file(value) and value not in there:
            near = get_close_matches(value, there, 1)
            hint = f"did you mean {near[0]}?" if near else f"its splits are {', '.join(there) or 'not named'}"
            raise ConfigError(
                f"task.data.splits.{key} is {value!r}, which is no share, no file (with a `.` or `/`) and no split of "
                f"task.data.source; {hint}"
            )
    used = []
    for table in tables:
        if not table.split or split_of(table.split, data) in SPLIT_NAMES:
            used.append(table)
        else:
            log.warning("%s is not used: it is neither train nor dev nor test", table.name)
    return used


def is_file(text: str) -> bool:
    """Is the value of `splits.dev` or `splits.test` a file or glob, not the name of a split?"""
    return "/" in text or "*" in text or "." in text


def content_digest(texts: Iterable[str]) -> bytes:
    """16 bytes that are equal for texts that differ in case, spaces or Unicode forms alone."""
    hasher = hashlib.blake2b(digest_size=16)
    for text in texts:  # of ASCII the normal form is the text itself
        folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
        hasher.update(" ".join(folded.split()).encode("utf-8", "replace"))
        hasher.update(b"\0")
    return hasher.digest()
