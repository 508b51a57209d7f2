"""Figures that papers print, to be shown beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PublishedRow:
    """A row of a paper's table. None stands for what the paper does not say."""

    title: str
    """as the paper prints it"""
    percent: tuple[float, ...]
    """one per client, in the paper's order"""
    macro: float
    """mean over the clients, in percent"""
    micro: float | None
    """over all examples together, in percent"""
    correct: int | None
    """over all clients; not printed by a paper, but its percentages times its sizes"""


@dataclass(frozen=True)
class Paper:
    """A paper's table of one metric."""

    name: str
    """that of the folder with its configs"""
    title: str
    """of the paper and of its tables, for what stands below its rows"""
    metric: str
    """that of our records that the table prints"""
    clients: Mapping[str, str]
    """our name -> the paper's"""
    sizes: tuple[int, ...]
    """examples behind each figure; empty if the paper does not say"""
    rows: Mapping[str, PublishedRow]
    """by config name"""
    remark: str = ""
    """what else stands below its rows; a caveat, or empty"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """further config name -> the one of its row"""


def row_names(name: str) -> tuple[str, str, str]:
    """The names that a run's row may have in a table.

    Its own; of `fedavg+small` (a config with another laid over it) the part before the `+`; of `fedavg-local` (the run
    beside `fedavg`) or `seed3-fedavg` the part after the last `-`.
    """
    return name, name.partition("+")[0], name.rpartition("-")[2]
