"""Figures that papers print, to be shown beside ours, and the config keys they were obtained with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtorch.tracking.run_folder import Run


@dataclass(frozen=True)
class ExpectedKey:
    """What a paper's run had, where one of our config keys says it."""

    key: str
    """our config key"""
    value: str
    """as the paper has it"""
    fits: Callable[[Any], bool]
    """is ours the same?"""


def equals(key: str, value: Any) -> ExpectedKey:
    """The config key has exactly this value."""
    return ExpectedKey(key, "all" if value is None else str(value), lambda ours: ours == value)


@dataclass(frozen=True)
class Row:
    """A row of a paper's table. None stands for what the paper does not say."""

    title: str
    percent: tuple[float, ...]
    """one per client, in the paper's order"""
    macro: float
    micro: float | None
    correct: int | None
    """over all clients"""
    expected: tuple[ExpectedKey, ...] = ()
    """of this row, beside those of the whole table"""


@dataclass(frozen=True)
class Paper:
    """A paper's table of one metric."""

    name: str
    """that of the folder with its configs"""
    title: str
    metric: str
    clients: Mapping[str, str]
    """our name -> the paper's"""
    sizes: tuple[int, ...]
    """examples behind each figure; empty if the paper does not say"""
    rows: Mapping[str, Row]
    """by config name"""
    expected: Sequence[ExpectedKey] = ()
    remark: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """further config name -> the one of its row"""

    def differences(self, row: Row, run: Run) -> list[str]:
        """What `run` did in another way than the paper, as far as its config tells."""
        if not run.config:
            return ["the run has no config.yaml, so nothing is known about its settings"]
        return [
            f"{expected.key} {_shown(run.setting(expected.key))} (paper: {expected.value})"
            for expected in (*self.expected, *row.expected)
            if not expected.fits(run.setting(expected.key))
        ]


def row_names(name: str) -> tuple[str, str, str]:
    """The names that a run's row may have in a table.

    Its own; of `fedavg+small` (a config with another laid over it) the part before the `+`; of `fedavg-local` (the run
    beside `fedavg`) or `seed3-fedavg` the part after the last `-`.
    """
    return name, name.partition("+")[0], name.rpartition("-")[2]


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
