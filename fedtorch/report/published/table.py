"""Figures that papers print, to be shown beside ours, and the settings they were obtained with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtorch.tracking.run_folder import Run


@dataclass(frozen=True)
class Setting:
    """A setting of a paper's run. key: our config key; value: as the paper has it; fits: is ours the same?"""

    key: str
    value: str
    fits: Callable[[Any], bool]


def equals(key: str, value: Any) -> Setting:
    """The config key has exactly this value."""
    return Setting(key, "all" if value is None else str(value), lambda ours: ours == value)


@dataclass(frozen=True)
class Row:
    """A row of a paper's table. percent: one per client, in the paper's order; correct: over all clients.

    None stands for what the paper does not say.
    """

    title: str
    percent: tuple[float, ...]
    macro: float
    micro: float | None
    correct: int | None
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class Paper:
    """A paper's table of one metric. clients: our name -> the paper's; rows: by config name.

    sizes: examples behind each figure; empty if the paper does not say.
    """

    name: str
    title: str
    metric: str
    clients: Mapping[str, str]
    sizes: tuple[int, ...]
    rows: Mapping[str, Row]
    settings: Sequence[Setting] = ()
    remark: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)

    def differences(self, row: Row, run: Run) -> list[str]:
        """What `run` did in another way than the paper, as far as its config tells."""
        if not run.config:
            return ["the run has no config.yaml, so nothing is known about its settings"]
        return [
            f"{setting.key} {_shown(run.setting(setting.key))} (paper: {setting.value})"
            for setting in (*self.settings, *row.settings)
            if not setting.fits(run.setting(setting.key))
        ]


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
