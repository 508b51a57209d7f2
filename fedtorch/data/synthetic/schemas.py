"""The eight relational schemas of the synthetic clients, their rows, and a SQLite database made from them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedtorch.core.errors import DataError
from fedtorch.core.seeds import generator_for


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    """a word, unique in its schema unless it is a key"""
    kind: Literal["label", "text", "number", "key"]
    """label: names its row (`book_7` in the seventh book) and is asked for, never asked about; key: links two tables
    and does not occur in questions"""
    values: tuple[str, ...] | tuple[int, ...] = ()
    """all that its rows, and questions about it, may have"""


@dataclass(frozen=True)
class Table:
    """One table."""

    name: str
    """a plural English noun"""
    columns: tuple[Column, ...]
    """in the order in which the model's input lists them"""
    num_rows: int
    """of the made-up database that queries can be run on"""

    def named(self, *kinds: str) -> list[Column]:
        """The columns of the given kinds, in table order."""
        return [column for column in self.columns if column.kind in kinds]


@dataclass(frozen=True)
class Schema:
    """One client's database. Column names other than keys are unique in it, so `natural join` joins on keys only."""

    client: str
    """whose it is"""
    tables: tuple[Table, ...]
    """in the order in which the model's input lists them"""

    def text(self) -> str:
        """The schema as it stands in the model's input: `| books : title , year | authors : ...`."""
        return " ".join(f"| {t.name} : {' , '.join(column.name for column in t.columns)}" for t in self.tables)

    def values(self) -> set[str | int]:
        """All values that questions about this schema may mention."""
        return {value for table in self.tables for column in table.columns for value in column.values}

    def links(self) -> list[tuple[Table, Table]]:
        """(child, parent) for every key: the parent is the table that has the key as its first column."""
        return [
            (child, parent)
            for parent in self.tables
            for child in self.tables
            if child is not parent and parent.columns[0].kind == "key" and parent.columns[0] in child.columns[1:]
        ]


_CITIES = ("paris", "london", "rome", "berlin", "madrid", "vienna", "oslo", "lisbon")
_COUNTRIES = ("france", "england", "italy", "germany", "spain", "austria", "norway", "portugal")
_GENRES = ("crime", "comedy", "drama", "romance", "horror", "history", "science", "travel")
_YEARS = (1930, 1940, 1950, 1960, 1970, 1980, 1990, 2000, 2010, 2020)
_SMALL = (15, 20, 25, 30, 35, 40, 45, 50, 60, 70)
_LARGE = (100, 150, 200, 250, 300, 350, 400, 500, 600, 800)

_NAME, _TITLE = Column("name", "label"), Column("title", "label")
_CITY, _COUNTRY, _GENRE = (
    Column("city", "text", _CITIES),
    Column("country", "text", _COUNTRIES),
    Column("genre", "text", _GENRES),
)
_YEAR, _AGE, _PRICE = (
    Column("year", "number", _YEARS),
    Column("age", "number", _SMALL),
    Column("price", "number", _SMALL),
)
_PAGES, _LENGTH = Column("pages", "number", _LARGE), Column("length", "number", _LARGE)
_SALARY, _WEIGHT, _CREDITS = (
    Column("salary", "number", _LARGE),
    Column("weight", "number", _SMALL),
    Column("credits", "number", _SMALL),
)


def _key(name: str) -> Column:
    return Column(name, "key")


# Ordered from the client with most examples to the one with fewest. No two ask for the same database, but tables and
# columns recur in other combinations, so what one learns helps the others: a small one alone sees each word too rarely.
SCHEMAS: tuple[Schema, ...] = (
    Schema(
        "library",
        (
            Table("books", (_TITLE, _GENRE, _YEAR, _PAGES, _key("authorid")), 48),
            Table("authors", (_key("authorid"), _NAME, _COUNTRY, _AGE), 16),
        ),
    ),
    Schema(
        "cinema",
        (
            Table("films", (_TITLE, _GENRE, _YEAR, _LENGTH, _key("directorid")), 48),
            Table("directors", (_key("directorid"), _NAME, _COUNTRY, _AGE), 16),
        ),
    ),
    Schema(
        "university",
        (
            Table("students", (_NAME, _CITY, _AGE, _CREDITS, _key("courseid")), 48),
            Table("courses", (_key("courseid"), _TITLE, _YEAR, _PRICE), 16),
        ),
    ),
    Schema(
        "hospital",
        (
            Table("patients", (_NAME, _CITY, _AGE, _WEIGHT, _key("doctorid")), 48),
            Table("doctors", (_key("doctorid"), _TITLE, _COUNTRY, _SALARY), 16),
        ),
    ),
    Schema(
        "publisher",
        (
            Table("books", (_TITLE, _GENRE, _YEAR, _PRICE, _key("authorid")), 48),
            Table("authors", (_key("authorid"), _NAME, _CITY, _AGE), 16),
        ),
    ),
    Schema(
        "festival",
        (
            Table("films", (_TITLE, _COUNTRY, _YEAR, _PRICE, _key("directorid")), 48),
            Table("directors", (_key("directorid"), _NAME, _CITY, _SALARY), 16),
        ),
    ),
    Schema(
        "clinic",
        (
            Table("patients", (_NAME, _COUNTRY, _AGE, _LENGTH, _key("doctorid")), 48),
            Table("doctors", (_key("doctorid"), _TITLE, _CITY, _SALARY), 16),
        ),
    ),
    Schema(
        "school",
        (
            Table("students", (_NAME, _COUNTRY, _AGE, _WEIGHT, _key("courseid")), 48),
            Table("courses", (_key("courseid"), _TITLE, _GENRE, _PAGES), 16),
        ),
    ),
)


def rows(schema: Schema, table: Table, *, seed: int = 0) -> list[tuple[str | int, ...]]:
    """The table's rows, a function of the seed and the names alone.

    A parent's key counts 1, 2, ...; a child's key is drawn from its parent's rows. Every value of a text or number
    column occurs at least once when the table has as many rows: the pool is repeated and shuffled, so questions
    about a value find rows.
    """
    parents = {parent.columns[0].name: parent for _, parent in schema.links()}
    columns: list[list[str | int]] = []
    for place, column in enumerate(table.columns):
        if column.kind == "label":
            columns.append([f"{column.name}_{row}" for row in range(1, table.num_rows + 1)])
            continue
        if column.kind == "key" and place == 0:
            columns.append(list(range(1, table.num_rows + 1)))
            continue
        pool: list[str | int] = (
            list(range(1, parents[column.name].num_rows + 1)) if column.kind == "key" else list(column.values)
        )
        generator = generator_for(seed, "synthetic rows", schema.client, table.name, column.name)
        order = torch.randperm(table.num_rows, generator=generator).tolist()
        columns.append([pool[index % len(pool)] for index in order])
    return list(zip(*columns, strict=True))


def build_database(schema: Schema, path: Path, *, seed: int = 0) -> None:
    """Write the schema's tables and rows as a SQLite file; the gold queries run on it.

    Raises:
        DataError: the file exists already; it is not overwritten.
    """
    if path.exists():
        raise DataError(f"{path} exists; expected a new file for the database of client {schema.client}; delete it")
    connection = sqlite3.connect(path)
    try:
        with connection:
            for table in schema.tables:
                columns = ", ".join(
                    f"{column.name} {'integer' if column.kind in ('key', 'number') else 'text'}"
                    for column in table.columns
                )
                connection.execute(f"create table {table.name} ({columns})")
                places = ", ".join("?" * len(table.columns))
                connection.executemany(f"insert into {table.name} values ({places})", rows(schema, table, seed=seed))
    finally:
        connection.close()
