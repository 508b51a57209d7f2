"""Tables of three made-up silos, exact, hidden and noised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtorch.stats.table import Numbers, Stats, Table

EDGES = (0.0, 1.0, 17.0, 33.0, 65.0, 129.0, math.inf)
"""So that a text of 16, 32, 64 or 128 tokens is in the bin below the edge."""
BINS = ("[0, 1)", "[1, 17)", "[17, 33)", "[33, 65)", "[65, 129)", "[129, inf)")
SILOS = ("east", "north", "west")


def table(
    name: str, cells: Sequence[str], silos: Mapping[str, Sequence[float | None]], kind: str = "names", **more: Any
) -> Table:
    """A table whose pooled numbers are the sums."""
    pooled = tuple(math.fsum(each or 0 for each in column) for column in zip(*silos.values(), strict=True))
    own = {silo: tuple(numbers) for silo, numbers in silos.items()}
    parts = kind == "bins" or name == "labels"
    fields: dict[str, Any] = {
        "edges": EDGES if kind == "bins" else (),
        "most": 1,
        "parts": parts,
        "pooled": pooled,
        "deviation": 0.0,
        "silos": own,
    }
    return Table(name=name, title=name, kind=kind, cells=tuple(cells), **{**fields, **more})


def labels(silos: Mapping[str, Sequence[float | None]], cells: Sequence[str] = ("bad", "good"), **more: Any) -> Table:
    return table("labels", cells, silos, **more)


def lengths(silos: Mapping[str, Sequence[float | None]], name: str = "tokens", **more: Any) -> Table:
    return table(name, BINS, silos, "bins", **more)


def exact(*others: Table, **changed: Any) -> Stats:
    """Exact numbers, all of them shown. others: in place of tables of the same name, or after them."""
    tables = (
        table("rows", ("train", "dev", "test"), {"east": (100, 10, 5), "north": (80, 8, 4), "west": (20, 2, 1)}),
        table("units", ("units",), {"east": (100,), "north": (80,), "west": (20,)}),
        table("twice", ("twice",), {"east": (3,), "north": (0,), "west": (1,)}),
        labels({"east": (75, 25), "north": (20, 60), "west": (10, 10)}),
        lengths({"east": (0, 10, 50, 40, 0, 0), "north": (0, 60, 10, 9, 1, 0), "west": (0, 8, 6, 5, 1, 0)}),
        table(
            "words", ("fever", "cough"), {"east": (40, 60), "north": (20, 10), "west": (9, 3)}, "found", threshold=9.5
        ),
    )
    named = {each.name: each for each in (*tables, *others)}
    facts: dict[str, Any] = {"unit": "row", "silos": SILOS, "min_count": None, "tokenizer": "words", "max_length": 32}
    return Stats(**{**facts, "task": "text_classification", "tables": tuple(named.values()), **changed})


def noised(found: Stats, deviation: float = 2.0, **changed: Any) -> Stats:
    """The numbers as they are, said to have noise, pooled alone."""
    tables = tuple(replace(each, silos={}, deviation=deviation) for each in found.tables)
    privacy = {"epsilon": 4.0, "delta": 1e-5, "noise_at": "local", "unit": "row"}
    return replace(found, **{"tables": tables, "privacy": privacy, **changed})


def noised_by_silo(found: Stats, deviation: float = 2.0) -> Stats:
    """The numbers as they are, said to have noise of each silo's own."""
    own = {each.name: each.silos for each in found.tables}
    pooled = noised(found, deviation * 3**0.5)
    return replace(
        pooled, tables=tuple(replace(each, silos=own[each.name], silo_deviation=deviation) for each in pooled.tables)
    )


def hidden(found: Stats, least: int = 5) -> Stats:
    """Numbers below `least` are not shown."""

    def kept(numbers: Numbers) -> Numbers:
        return tuple(each if each is not None and each >= least else None for each in numbers)

    tables = tuple(
        replace(each, pooled=kept(each.pooled), silos={silo: kept(own) for silo, own in each.silos.items()})
        for each in found.tables
    )
    return replace(found, tables=tables, min_count=least)
