"""Runs that differ in nothing but the seed as one group: its name, its figures and curves over the seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedtorch.report.compared import by_settings
from fedtorch.report.find_runs import NamedRun
from fedtorch.tracking.plugin import flat
from fedtorch.tracking.run_folder import Evaluation, Run

_SEED = re.compile(r"(^|[,+_-])(?:run\.)?seed[=_-]?\d+(?=$|[,+_-])")
OWN = ("run.name", "run.dir", "run.seed", "run.published", "run.export", "run.trackers", "checkpoint.", "track.")
"""Keys, or their beginnings, that say nothing about what is compared."""


@dataclass(frozen=True)
class Band:
    """A curve over seeds."""

    xs: list[int]
    """rounds"""
    mean: list[float]
    """over the seeds that have the round"""
    spread: list[float]
    """standard deviation, 0 of one seed"""

    @property
    def low(self) -> list[float]:
        """mean − spread"""
        return [mean - spread for mean, spread in zip(self.mean, self.spread, strict=True)]

    @property
    def high(self) -> list[float]:
        """mean + spread"""
        return [mean + spread for mean, spread in zip(self.mean, self.spread, strict=True)]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    name: str
    """shared by its runs, without the seed; sets them apart from other groups"""
    runs: list[Run]
    """one for each seed; at least one"""

    @property
    def label(self) -> str:
        """The name, with the number of seeds."""
        return self.name if len(self.runs) == 1 else f"{self.name} (n={len(self.runs)})"

    def evaluations(self, metric: str) -> list[Evaluation]:
        """Evaluation that counts, of each run that has one."""
        found = [[e for e in run.last_evaluations() if e.of(metric)] for run in self.runs]
        return [evaluations[0] for evaluations in found if evaluations]

    def losses(self) -> Band:
        """Mean loss of a round's clients."""
        return _band([[(r["round"], r["loss"]) for r in run.of_kind("round")] for run in self.runs])

    def client_losses(self, client: str) -> Band:
        """Mean loss of a round of one client."""
        return self.of_clients("loss_mean").get(client, Band([], [], []))

    @property
    def chosen_rounds(self) -> list[int]:
        """Round whose weights were scored, of each run that chose one for all clients."""
        return [round for run in self.runs if (round := run.chosen_round) is not None]

    def shared_by(self, metric: str) -> int:
        """How many clients have the same rows of the split that was scored, as the records say; 0: each has its own."""
        counted = 0
        for run in self.runs:
            for evaluation in [e for e in run.last_evaluations() if e.of(metric)][:1]:
                key = (evaluation.label, evaluation.split, evaluation.round)
                told = [r for r in run.of_kind("eval") if (r["label"], r["split"], r["round"]) == key]
                counted = max(counted, sum(bool(record.get("shared")) for record in told))
        return counted

    def own_rounds(self) -> dict[str, list[int]]:
        """client -> the rounds of its own best models, one for each run whose clients choose for themselves."""
        found: dict[str, list[int]] = {}
        for run in self.runs:
            for evaluation in run.last_evaluations():
                for client, round in evaluation.own_rounds.items() if evaluation.label == "final" else ():
                    found.setdefault(client, []).append(round)
        return found

    def of_round(self, key: str, scale: float = 1.0) -> Band:
        """A number of each round, such as `bytes_up`, divided by `scale`."""
        rounds = [run.of_kind("round") for run in self.runs]
        return _band([[(r["round"], r[key] / scale) for r in found if r.get(key) is not None] for found in rounds])

    def of_clients(self, key: str) -> dict[str, Band]:
        """client -> a number of its rounds, such as `loss_mean` or `weight`."""
        points: dict[str, list[list[tuple[int, float | None]]]] = {}
        for place, run in enumerate(self.runs):
            for r in run.of_kind("client"):
                if r["status"] == "ok":
                    own = points.setdefault(r["client"], [[] for _ in self.runs])
                    own[place].append((r["round"], r.get(key)))
        return {client: _band(curves) for client, curves in points.items()}

    def scores_of_clients(self, split: str, metric: str) -> dict[str, Band]:
        """client -> its scores during training."""
        points: dict[str, list[list[tuple[int, float | None]]]] = {}
        for place, run in enumerate(self.runs):
            for r in run.of_kind("eval"):
                if r["split"] == split and r["label"] in ("training", "global") and metric in r["metrics"]:
                    total, count = r["metrics"][metric]
                    if count and total is not None:
                        own = points.setdefault(r["client"], [[] for _ in self.runs])
                        own[place].append((r["round"], total / count))
        return {client: _band(curves) for client, curves in points.items()}

    def scores(self, split: str, metric: str) -> Band:
        """Scores of all examples together, during training."""
        return _band(
            [
                [
                    (r["round"], r["metrics"].get(metric, {}).get("micro"))
                    for r in run.of_kind("eval_total")
                    if r["split"] == split and r["label"] in ("training", "global")
                ]
                for run in self.runs
            ]
        )


def make_groups(runs: Iterable[NamedRun]) -> list[Group]:
    """Named without the seed; where two would have one name, with what sets them apart."""
    found = by_settings(runs)
    groups = [Group(group_name([name for name, _ in members]), [run for _, run in members]) for members in found]
    names = [group.name for group in groups]
    differing = differences(groups) if len(set(names)) < len(names) else {}
    result = []
    for place, group in enumerate(groups):
        if names.count(group.name) > 1:
            told = [f"{key}={values[place]}" for key, values in differing.items()][:2]
            group = Group(f"{group.name} [{', '.join(told) or names[: place + 1].count(group.name)}]", group.runs)
        result.append(group)
    return result


def group_name(names: Sequence[str]) -> str:
    """`fedavg` of `fedavg,seed=0` and `fedavg,seed=1`; a run that is alone keeps its name."""
    if len(names) == 1:
        return names[0]
    bare = {_SEED.sub("", name).strip(",+_-") for name in names}
    return next(iter(bare)) or names[0] if len(bare) == 1 else names[0]


def differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Dotted key -> its value in each group, of those that are not the same in all of them; None where it lacks."""
    configs = [flat(group.runs[0].config) for group in groups]
    keys = [key for key in dict.fromkeys(key for config in configs for key in config) if not key.startswith(OWN)]
    found = {key: [config.get(key) for config in configs] for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def charts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """(split, metric) of the scores during training that have more than one point; single tasks' last."""
    found: dict[tuple[str, str], set[int]] = {}
    for group in groups:
        for run in group.runs:
            for record in run.of_kind("eval_total"):
                if record["label"] in ("training", "global"):
                    for metric, total in record["metrics"].items():
                        if total["micro"] is not None:
                            found.setdefault((record["split"], metric), set()).add(record["round"])
    return sorted((key for key, rounds in found.items() if len(rounds) > 1), key=lambda key: "/" in key[1])


def _band(curves: Sequence[Sequence[tuple[int, float | None]]]) -> Band:
    at: dict[int, list[float]] = {}
    for curve in curves:
        for x, y in curve:
            if y is not None:
                at.setdefault(x, []).append(y)
    xs = sorted(at)
    return Band(xs, [fmean(at[x]) for x in xs], [stdev(at[x]) if len(at[x]) > 1 else 0.0 for x in xs])
