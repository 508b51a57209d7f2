"""Outcome of a run, as the runner returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtorch.core.update import Report
from fedtorch.tasks.base import Scores


@dataclass
class Result:
    """Outcome of a run; complete on the server."""

    rounds: int = 0
    """rounds done"""
    scores: Mapping[str, Scores] = field(default_factory=dict)
    """per client on the final split, with the best model"""
    each: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """the same of its single examples, if they are recorded"""
    reports: dict[str, Report] = field(default_factory=dict)
    """each client's last one"""
    weights: dict[str, float] = field(default_factory=dict)
    """each client's last one in the combination"""
    digest: str = ""
    """sha256 over the final global weights and every client's state, equal exactly when all bits are"""
    best_round: int | None = None
    """rounds done when the best model was evaluated, where there is one for all"""
    client_rounds: Mapping[str, int] = field(default_factory=dict)
    """the same per client, where each has chosen for itself"""
    lost: dict[str, int] = field(default_factory=dict)
    """clients of workers that were lost -> rounds that had been drawn with them"""
    privacy: dict[str, Any] = field(default_factory=dict)
    """what is promised to clients and what it came to; empty where nothing is"""
    trust: dict[str, Any] = field(default_factory=dict)
    """who has checked the server's sums and steps; empty where nobody does"""
