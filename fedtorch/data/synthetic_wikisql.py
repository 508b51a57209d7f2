"""A small set in WikiSQL's form made by the package itself: tables of five kinds, questions by templates."""

from __future__ import annotations

from pathlib import Path

import torch

from fedtorch.core.seeds import generator_for
from fedtorch.data.prepare_wikisql import write_pool
from fedtorch.data.recipe import prepare_once
from fedtorch.data.wikisql import Row

SIZES = {"train": 2400, "dev": 120, "test": 160}
VOCAB_SIZE = 600

# Columns of each table; one with values is text, one without holds numbers.
_TABLES: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "Player": ("Ana Silva", "Tom Reed", "Ivo Novak", "Mia Chen"),
        "Club": ("Porto", "Leeds", "Basel", "Turin"),
        "Goals": (),
        "Season": (),
    },
    {"City": ("Lima", "Oslo", "Cairo", "Kyoto"), "Country": ("Peru", "Norway", "Egypt", "Japan"), "Population": ()},
    {
        "Film": ("Red Moon", "The Bay", "Long Road", "Silent Hill"),
        "Director": ("Kim Lee", "Jo Brandt", "Eva Ruiz"),
        "Year": (),
        "Awards": (),
    },
    {"River": ("Elbe", "Volga", "Ganges", "Niger"), "Length": (), "Mouth": ("North Sea", "Caspian Sea", "Bengal")},
    {"Course": ("Logic", "Optics", "Botany"), "Teacher": ("Dr. Bell", "Dr. Ames", "Dr. Okoro"), "Credits": ()},
)

# aggregation, the question's beginning; `#` is the selected column
_ASKS = (
    (0, "what is the #"),
    (0, "which # is it"),
    (1, "what is the highest #"),
    (2, "what is the lowest #"),
    (3, "how many # are there"),
    (4, "what is the total #"),
    (5, "what is the average #"),
)
_NUMERIC = (1, 2, 4, 5)


def prepare(out: Path, *, seed: int = 0) -> None:
    """Write the set as a prepared folder; keep one made with this seed. Several processes may call it at once.

    Raises:
        DataError: `out` was prepared differently.
    """
    options = {"synthetic": seed, "vocab_size": VOCAB_SIZE}
    prepare_once(out, options, lambda folder: write_pool(folder, "synthetic_wikisql", generate(seed=seed), options))


def generate(*, seed: int = 0) -> dict[str, list[Row]]:
    """The rows of every split; the same on every machine for the same seed. Questions may occur more than once."""
    return {split: [_row(generator_for(seed, "question", split, i)) for i in range(n)] for split, n in SIZES.items()}


def _row(generator: torch.Generator) -> Row:
    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    table = _TABLES[draw(len(_TABLES))]
    header = list(table)
    numeric = [place for place, name in enumerate(header) if not table[name]]
    agg, ask = _ASKS[draw(len(_ASKS))]
    sel = numeric[draw(len(numeric))] if agg in _NUMERIC else draw(len(header))
    others = [place for place in range(len(header)) if place != sel]
    question, conditions = ask.replace("#", header[sel].lower()), []
    for number in range(min(draw(3), len(others))):
        column = others.pop(draw(len(others)))
        values = table[header[column]]
        operator = 0 if values else draw(3)
        value = values[draw(len(values))] if values else str(1 + draw(99))
        word = ("is", "is more than", "is less than")[operator]
        question += f" {'and' if number else 'when'} {header[column].lower()} {word} {value}"
        conditions.append([column, operator, value])
    types = ["string" if table[name] else "real" for name in header]
    return {
        "question": f"{question} ?",
        "header": header,
        "types": types,
        "agg": agg,
        "sel": sel,
        "conds": conditions,
    }
