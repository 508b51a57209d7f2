"""Runs with adapters side by side: what travelled, what averaging lost, ranks, rows and the score."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import AGGREGATION_ERROR
from fedtorch.core.shown import markdown_row
from fedtorch.report.compared import figure
from fedtorch.report.find_runs import NamedRun
from fedtorch.report.groups import Group, make_groups
from fedtorch.tracking.run_folder import Run

_HEADS = (
    "run",
    "rule",
    "r",
    "rows",
    "rounds",
    "MB up a round",
    "MB down a round",
    "aggregation error",
    "last",
    "score",
)


def adapters_markdown(runs: Sequence[NamedRun]) -> str:
    """The table; runs that differ in the seed alone share a row (mean ± standard deviation).

    Bytes of a round are what clients send and receive by the meter, evaluations included. The error is the mean
    over the rounds, and that of the last one. The score is the micro
    mean, in the evaluation that counts, of what the run was selected by.

    Raises:
        ConfigError: a run has no adapter.
    """
    for _, run in runs:
        if not _adapter(run):
            raise ConfigError(f"{run.folder} has no task.model.adapter; name runs with adapters")
    lines = ["| " + " | ".join(_HEADS) + " |", "|---|---|" + "---:|" * (len(_HEADS) - 2)]
    for group in make_groups(runs):
        first, rounds = group.runs[0], [run.of_kind("round") for run in group.runs]
        told = [[r.get("extra", {}).get(AGGREGATION_ERROR) for r in one] for one in rounds]
        errors = [[error for error in one if error is not None] for one in told]
        columns = [
            group.label,
            _rule(first),
            str(_adapter(first).get("r", "")),
            str(sum(first.examples.values())),
            str(first.last_round),
            *(figure([fmean(r[name] for r in one) / 1e6 for one in rounds if one], 3)
              for name in ("bytes_up", "bytes_down")),
            figure([fmean(one) for one in errors if one], 4),
            figure([one[-1] for one in errors if one], 4),
            _score(group),
        ]  # fmt: skip
        lines.append(markdown_row(columns))
    return "\n".join(lines) + "\n"


def _adapter(run: Run) -> dict[str, Any]:
    found = run.setting("task.model.adapter")
    return dict(found) if isinstance(found, dict) else {}


def _rule(run: Run) -> str:
    """The algorithm, what of the factors is private or frozen or a square, and how a quantised base is kept."""
    added = _adapter(run).get("kind", "lora")
    parts = [f"{kind} {', '.join(patterns)}" for kind in ("private", "frozen")
             if (patterns := run.setting(f"partition.{kind}"))]  # fmt: skip
    parts += [f"kind {added}"] if added != "lora" else []
    if isinstance(quantize := run.setting("task.model.quantize"), dict):
        parts.append(f"base in {quantize.get('kind', 'nf4')}")
    return "; ".join([str(run.setting("algorithm.name") or "fedavg"), *parts])


def _score(group: Group) -> str:
    metric = next((name for run in group.runs if (name := run.metric())), "")
    means = [found.average(metric)["micro"] for found in group.evaluations(metric)]
    return f"{figure([mean for mean in means if mean is not None], 4)} {metric}".strip()
