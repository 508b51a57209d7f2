"""Scores over a key that runs differ in: which key, which runs make a line, and what stands at each value."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.metrics.about import is_never_share
from fedtorch.report.groups import Group, differences

AVERAGES = ("macro", "micro")
"""Beside the clients in a point's figures."""


@dataclass(frozen=True)
class Point:
    """Scores of runs that differ in nothing but the seed, at one value of the key."""

    value: Any
    """of the key: a number, or the text that it goes by"""
    figures: Mapping[str, Sequence[float]]
    """client, `macro`, `micro` -> a figure per seed"""
    counts: Mapping[str, int]
    """client -> examples"""


@dataclass(frozen=True)
class Line:
    """Runs that differ in nothing but the key (and in what changes with it)."""

    name: str
    """what else sets them apart from other lines, `KEY=VALUE, ...`; empty where nothing does"""
    points: list[Point]
    """in the order of the key's values"""


@dataclass(frozen=True)
class Sweep:
    """A metric over a key."""

    key: str
    """the dotted key of the config that was swept"""
    metric: str
    """of all figures"""
    lines: list[Line]
    """one for each setting of the other keys in which the runs differ"""

    @property
    def is_numeric(self) -> bool:
        """Are all values of the key numbers?"""
        return all(isinstance(point.value, int | float) for line in self.lines for point in line.points)

    @property
    def clients(self) -> dict[str, int]:
        """client -> examples, of all points, in their order"""
        return {client: n for line in self.lines for point in line.points for client, n in point.counts.items()}

    @property
    def is_percent(self) -> bool:
        """Are all figures shares?"""
        figures = (f for line in self.lines for point in line.points for f in point.figures.values())
        return not is_never_share(self.metric) and all(0 <= value <= 1 for values in figures for value in values)


def sweep_of(groups: Sequence[Group], metric: str, key: str | None) -> Sweep:
    """The scores of `metric` over `key`, by default over the one key that can be meant.

    Keys whose value follows from the key's are no line of their own (epochs that are fewer where rounds are more). One
    that has the key's value in some runs, and one and the same in all others, makes a line `as swept` of the former.

    Raises:
        ConfigError: the runs do not differ in `key`, or in several keys without `key`, or none has the metric.
    """
    kept = [group for group in groups if group.evaluations(metric)]
    if not kept:
        raise ConfigError(f"no run has scores of {metric}")
    differing = {name: [_bare(value) for value in values] for name, values in differences(kept).items()}
    key = _chosen(differing, key)
    differing = {name: _as_swept(values, differing[key]) for name, values in differing.items() if name != key} | {
        key: differing[key]
    }
    others = _independent(differing, key)
    lines: dict[str, list[tuple[Any, Group]]] = {}
    for place, group in enumerate(kept):
        name = ", ".join(f"{other}={differing[other][place]}" for other in others)
        lines.setdefault(name, []).append((_shown(differing[key][place], group), group))
    return Sweep(key, metric, [Line(name, _points(members, metric)) for name, members in lines.items()])


def _chosen(differing: Mapping[str, Sequence[Any]], key: str | None) -> str:
    if not differing:
        raise ConfigError("the runs do not differ in any key but the seed; name the folder of a sweep over a key")
    if key is not None:
        if key not in differing:
            near = difflib.get_close_matches(key, differing, 1, 0.0)[0]
            raise ConfigError(f"--over is {key}, in which the runs do not differ; nearest: {near}. "
                              f"They differ in: {', '.join(differing)}")  # fmt: skip
        return key
    # of keys that change together the first whose values are all numbers
    free = [name for name in differing if not any(_follows(differing, name, other) and
            not _follows(differing, other, name) for other in differing)]  # fmt: skip
    apart = [name for name in free if not all(_follows(differing, name, other) for other in free)]
    if apart:
        raise ConfigError(f"the runs differ in several keys: choose one with --over: {', '.join(free)}")
    return next((name for name in free if all(isinstance(v, int | float) for v in differing[name])), free[0])


def _as_swept(values: Sequence[Any], swept: Sequence[Any]) -> list[Any]:
    """`as swept` in place of values that go along with the key in some runs, while the others all have one value."""
    along = [value == other for value, other in zip(values, swept, strict=True)]
    moved = {json.dumps(value, default=str) for value, is_along in zip(values, along, strict=True) if is_along}
    still = {json.dumps(value, default=str) for value, is_along in zip(values, along, strict=True) if not is_along}
    if len(moved) < 2 or len(still) != 1:
        return list(values)
    return ["as swept" if is_along else value for value, is_along in zip(values, along, strict=True)]


def _follows(differing: Mapping[str, Sequence[Any]], name: str, other: str) -> bool:
    """Has `name` one value for each value of `other`?"""
    found: dict[str, Any] = {}
    return all(
        found.setdefault(json.dumps(theirs, default=str), ours) == ours
        for ours, theirs in zip(differing[name], differing[other], strict=True)
    )


def _independent(differing: Mapping[str, Sequence[Any]], key: str) -> list[str]:
    """Keys that tell lines apart, as few as do."""
    kept: list[str] = []
    for name in differing:
        if name != key and not any(_follows(differing, name, other) for other in (key, *kept)):
            kept.append(name)
    return [name for name in kept if not any(_follows(differing, name, o) for o in kept if o != name)] or kept


def _bare(value: Any) -> Any:
    """A number that YAML took for a text (`1e-3`) as a number."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d[\d.]*(e[+-]?\d+)?", value):
        return float(value)
    return value


def _shown(value: Any, group: Group) -> Any:
    """A list, which is a JSON text here, is too long for an axis: the runs' name stands for it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return group.name if isinstance(value, str) and value.startswith("[") else value


def _points(members: Sequence[tuple[Any, Group]], metric: str) -> list[Point]:
    return [_point(value, group, metric) for value, group in sorted(members, key=lambda member: _order(member[0]))]


def _order(value: Any) -> tuple[bool, float, list[tuple[bool, float, str]]]:
    """Numbers, then texts, numbers in texts as numbers."""
    if isinstance(value, int | float):
        return (False, float(value), [])
    parts = re.findall(r"\d+|\D+", str(value))
    return (True, 0.0, [(not part.isdigit(), float(part) if part.isdigit() else 0.0, part) for part in parts])


def _point(value: Any, group: Group, metric: str) -> Point:
    figures: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for evaluation in group.evaluations(metric):
        for client, (total, count) in evaluation.of(metric).items():
            figures.setdefault(client, []).append(total / count)
            counts[client] = count
        average = evaluation.average(metric)
        for kind in AVERAGES:
            if average[kind] is not None:
                figures.setdefault(kind, []).append(average[kind])
    return Point(value, figures, counts)
