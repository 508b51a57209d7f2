"""Tables of what silos have as people read them: rows of texts, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from fedtorch.core.terminal import NOTHING, Cell, print_table
from fedtorch.data.own.overview import label_divergence
from fedtorch.stats.bins import Bins, in_words, longest_below
from fedtorch.stats.questions import FOUND_LABELS, bins
from fedtorch.stats.said import how_often, who_sees
from fedtorch.stats.table import Numbers, Stats, Table

FACTS = ("rows", "units", "empty", "twice")
"""Tables that stand in one, a column for each of their cells."""
LABELS = ("labels", "entities", FOUND_LABELS)
"""Tables of labels, or of kinds of spans; the first one that a run has is the one that counts."""
SILOS_SHOWN = 8
"""Silos that have a column of their own; the page's heat map has all."""
LENGTHS_SHOWN = 6
"""Lengths for which it is told how many rows are longer."""
QUANTILES = {"median": 0.5, "95 %": 0.95}
ALL = "all"
HIDDEN = "*"
"""In place of a number that is not shown."""


@dataclass(frozen=True)
class Grid:
    """One question as a table of texts."""

    name: str
    """of the first `Table` in it"""
    title: str
    """for people"""
    heads: tuple[str, ...]
    """of the columns"""
    rows: tuple[tuple[Cell, ...], ...]
    """what is shown, and what a column is sorted by"""
    total: tuple[Cell, ...] = ()
    """the last row, of all silos; empty: there is none"""
    notes: tuple[str, ...] = ()
    """sentences below it"""


def show(stats: Stats, console: Console) -> None:
    """Print all tables, and what each number tells about whom."""
    for grid in grids(stats):
        texts = [[shown for shown, _ in row] for row in grid.rows]
        print_table(console, grid.title, grid.heads, texts, total=[shown for shown, _ in grid.total])
        for line in grid.notes:
            console.print(line, soft_wrap=True)
    for line in who_sees(stats):
        console.print(line, soft_wrap=True)


def grids(stats: Stats) -> list[Grid]:
    """All questions, in the order of the tables; small ones stand together in the first."""
    facts = [table for table in stats.tables if table.name in FACTS]
    found = [_facts(stats, facts)] if facts else []
    for table in stats.tables:
        if table.kind == "bins":
            found.append(_lengths(stats, table))
        elif table.name not in FACTS and not (table.name == FOUND_LABELS and label_table(stats) is not table):
            found.append(_names(stats, table))
    return found


def label_table(stats: Stats) -> Table | None:
    """Table of the labels, declared or found; None: there are none."""
    return next((table for name in LABELS if (table := stats.table(name))), None)


def number(value: float | None, deviation: float, min_count: int | None) -> Cell:
    """A count: `*` where it is not shown, `12 ± 3` where it has noise of that standard deviation."""
    if value is None:
        return (HIDDEN, None) if min_count is not None else NOTHING
    noise = f" ± {deviation:.2g}" if deviation else ""
    return f"{round(value)}{noise}", value


def share(value: float | None, most: float = 0.0) -> Cell:
    """A share of rows, in per cent. most: what it is at most, told where noise or hidden numbers leave that open."""
    if value is None:
        return NOTHING
    unsure = f" (≤ {most:.1%})" if most > value else ""
    return f"{value:.1%}{unsure}", value


def divergences(stats: Stats) -> dict[str, float]:
    """Silo -> Jensen–Shannon divergence of its labels to those of all, in bits; only where all numbers are exact."""
    table = label_table(stats)
    if table is None or stats.privacy or any(None in numbers for numbers in table.silos.values()):
        return {}
    return label_divergence(
        {name: dict(zip(table.cells, _whole(own), strict=True)) for name, own in table.silos.items()}
    )


def _whole(numbers: Numbers) -> list[int]:
    return [round(each or 0) for each in numbers]


def _facts(stats: Stats, tables: Sequence[Table]) -> Grid:
    """A row for each silo, a column for each fact."""
    heads = [name for table in tables for name in (table.cells if table.name == "rows" else (table.name,))]
    apart = divergences(stats)

    def row(name: str, silo: str | None) -> tuple[Cell, ...]:
        cells = [cell for table in tables for cell in _cells(stats, table, silo)]
        if apart:
            cells.append((f"{apart[silo]:.3f}", apart[silo]) if silo in apart else ("", None))
        return ((name, name), *cells)

    rows = [row(silo, silo) for silo in stats.silos if any(table.silos for table in tables)]
    notes = ["JS: Jensen–Shannon divergence of the labels to those of all, in bits; 0 is alike"] if apart else []
    title = f"{heading(stats)} (unit: {stats.unit})"
    return Grid(
        tables[0].name, title, ("silo", *heads, *["JS"] * bool(apart)), tuple(rows), row(ALL, None), tuple(notes)
    )


def _cells(stats: Stats, table: Table, silo: str | None) -> list[Cell]:
    if silo is not None and silo not in table.silos:
        return [("", None)] * len(table.cells)
    numbers = table.pooled if silo is None else table.silos[silo]
    deviation = table.deviation if silo is None else table.silo_deviation
    return [number(each, deviation, stats.min_count) for each in numbers]


def _names(stats: Stats, table: Table) -> Grid:
    """A row for each name, the most frequent first; a column for all and for each of the first silos."""
    silos = [name for name in stats.silos if name in table.silos][:SILOS_SHOWN]
    columns = [_cells(stats, table, None), *(_cells(stats, table, silo) for silo in silos)]
    order = sorted(range(len(table.cells)), key=lambda place: -(table.pooled[place] or 0))
    rows = tuple(((table.cells[place],) * 2, *(column[place] for column in columns)) for place in order)
    notes = list(_notes(table))
    how = stats.table(FOUND_LABELS) if table is label_table(stats) else None
    if how is not None and how is not table:
        notes = ["Nobody declared these labels: they were found.", *_notes(how), *notes]
    if len(table.silos) > len(silos):
        notes.append(f"{len(table.silos) - len(silos)} more silos stand on the page and in the file.")
    head = "found" if table.kind == "found" else "name"
    return Grid(table.name, table.title, (head, ALL, *silos), rows, notes=tuple(notes))


def _lengths(stats: Stats, table: Table) -> Grid:
    """A row for each silo: quantiles with the bounds of their bins, and shares that are longer than some lengths."""
    edges = told_edges(stats, table)
    heads = ["silo", *QUANTILES, *(f"> {longest_below(table.edges[place])}" for place in edges)]

    def row(name: str, silo: str | None) -> tuple[Cell, ...]:
        own = Bins.of(stats, table, silo)
        bounds = {share: own.quantile(share) for share in QUANTILES.values()}
        cells = [(in_words(each), each[0] if each else None) for each in bounds.values()]
        return ((name, name), *cells, *(share(own.share(place), own.most_share(place)) for place in edges))

    rows = [row(silo, silo) for silo in stats.silos if silo in table.silos]
    return Grid(table.name, table.title, tuple(heads), tuple(rows), row(ALL, None), tuple(_notes(table)))


def told_edges(stats: Stats, table: Table) -> list[int]:
    """Places of edges for which it is told how many rows are longer: lengths in tokens that are of interest.

    They are those whose edges are none of usual bins: the config's `max_length`, then those that some rows exceed and
    the first that none does.
    """
    if table.name != "tokens":
        return []
    usual = set(bins()) - {(stats.max_length or 0) + 1.0}
    wanted = [place for place, edge in enumerate(table.edges[:-1]) if edge not in usual]
    whole = Bins.of(stats, table)
    exceeded = [place for place in wanted if whole.from_edge(place) > 0]
    rest = [place for place in wanted if place not in exceeded][:1]
    configured = [place for place in wanted if longest_below(table.edges[place]) == stats.max_length]
    return sorted({*(exceeded + rest)[-LENGTHS_SHOWN:], *configured})


def _notes(table: Table) -> Iterator[str]:
    if table.most > 1:
        yield f"A unit is in {table.most} cells at most."
    if often := how_often(table):
        yield f"Shown is what was counted {often}."


def heading(stats: Stats) -> str:
    """Heading of the page and of the first table."""
    return "What one silo has" if len(stats.silos) == 1 else f"What {len(stats.silos)} silos have together"
