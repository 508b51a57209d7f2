"""Outcome of an attack, in numbers and in words that promise nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LITTLE = "this attack found"
"""How a result begins, with little as with much: what one attack does not find another may."""


@dataclass(frozen=True)
class Finding:
    """One attack on one run."""

    attack: str
    """its name on the command line"""
    about: str
    """a line on what it does"""
    needs: str
    """what the attacker has to see or know"""
    said: str
    """the result in a sentence"""
    figures: Sequence[Mapping[str, Any]] = ()
    """a row for each thing that was attacked, with the same keys"""
    picture: str = ""
    """SVG"""
    skipped: str = ""
    """why it was not run; empty: it was"""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """what was recovered itself, only where that was asked for"""

    def record(self) -> dict[str, Any]:
        """For `audit.json`."""
        found: dict[str, Any] = {"attack": self.attack, "about": self.about, "needs": self.needs}
        if self.skipped:
            return {**found, "skipped": self.skipped}
        found |= {"said": self.said, "figures": [dict(row) for row in self.figures]}
        return {**found, "shown": dict(self.shown)} if self.shown else found


def share(part: int, whole: int) -> float | None:
    """A quotient, None of nothing."""
    return part / whole if whole else None


def percent(value: float | None) -> str:
    """For a sentence."""
    return "none" if value is None else f"{100 * value:.0f} %"
