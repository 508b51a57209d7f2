"""Tables of what silos have together, as they are shown and written: RUN/stats.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError

FILE = "stats.json"
"""Name of the file in a run folder, the same on every party's disk."""
_FORM = 1
Numbers = tuple[float | None, ...]
"""A number for each cell; None: it is not shown, because so few units are behind it, or behind what it leaves over."""


@dataclass(frozen=True)
class Table:
    """One question, and what all silos together answer."""

    name: str
    """rows, labels, characters, tokens, words, ...: short, one for each question"""
    title: str
    """for people"""
    kind: str
    """names: a cell is a name; bins: a cell is a range of numbers, see `edges`; found: names that nobody declared"""
    cells: tuple[str, ...]
    """names of the cells; of bins as they are shown, `[16, 22)`"""
    edges: tuple[float, ...]
    """of bins: one more than there are cells, ascending, the last one infinity; else none"""
    most: int
    """m: a unit is in so many cells at most; of more it gives so many, drawn by its silo"""
    parts: bool
    """is a unit in exactly one of the cells, so that they add up to all units?"""
    pooled: Numbers
    """of all silos together"""
    deviation: float
    """standard deviation of the noise on each pooled number; 0: there is none"""
    silos: Mapping[str, Numbers] = field(default_factory=dict)
    """silo -> its own numbers; nothing where masks hide them, or where they were not asked for"""
    silo_deviation: float = 0.0
    """of the noise on each number of a silo"""
    threshold: float | None = None
    """of found names: what a number had to be above, or without noise had to reach, to be shown; else None"""


@dataclass(frozen=True)
class Stats:
    """All tables of one run."""

    unit: str
    """what is counted: `row`, `person (column NAME)` or `client`"""
    silos: tuple[str, ...]
    """names of the clients that were counted"""
    tables: tuple[Table, ...]
    """one a question, in the order in which they are shown"""
    min_count: int | None
    """numbers below it are not shown; None: noise hides them, and all are"""
    tokenizer: str | None = None
    """by which tokens are counted; None: they are not"""
    max_length: int | None = None
    """`task.max_length` of the config that was counted with"""
    privacy: Mapping[str, Any] = field(default_factory=dict)
    """what is promised, as in results.json: epsilon, delta, unit, noise_at, ...; nothing where nothing is"""
    task: str = ""
    """`task.name`"""
    absent: Mapping[str, int] = field(default_factory=dict)
    """silo -> in how many rounds it took no part; only those that missed some"""
    masked: bool = False
    """did masks hide each silo's numbers, so that nobody has seen more than sums over silos?"""

    def table(self, name: str) -> Table | None:
        """Table of that name, if there is one."""
        return next((table for table in self.tables if table.name == name), None)

    def write(self, folder: Path) -> Path:
        """Write the file into a run folder; returns its path."""
        path = folder / FILE
        data = {"form": _FORM, **_plain(self)}
        path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, run: Path) -> Stats:
        """Read what `write` has written. run: the folder, or the file in it.

        Raises:
            DataError: it is not there, or is no such file.
        """
        path = run / FILE if run.is_dir() else run
        try:
            data = json.loads(path.read_bytes())
            if data.pop("form") != _FORM:
                raise ValueError
            tables = tuple(_table(each) for each in data.pop("tables"))
            return cls(**{**data, "silos": tuple(data["silos"]), "tables": tables})
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}); name the folder of a run of `fedtorch stats`"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DataError(f"{path} is no file of `fedtorch stats`, or of another version; count anew") from None


def _table(data: Mapping[str, Any]) -> Table:
    found = dict(data)
    for name in ("cells", "pooled"):
        found[name] = tuple(found[name])
    found["edges"] = tuple(float("inf") if edge is None else float(edge) for edge in found["edges"])
    found["silos"] = {name: tuple(numbers) for name, numbers in found["silos"].items()}
    table = Table(**found)
    lengths = {len(table.cells), len(table.pooled), *map(len, table.silos.values())}
    if len(lengths) != 1 or (table.edges and len(table.edges) != len(table.cells) + 1):
        raise ValueError(f"table {table.name} has columns of unlike length")
    return table


def _plain(value: Any) -> Any:
    """As JSON has it; infinity, the last edge of bins, is null there."""
    if isinstance(value, Stats | Table):
        return {name: _plain(each) for name, each in vars(value).items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return None if value == float("inf") else value
