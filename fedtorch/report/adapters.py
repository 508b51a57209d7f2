"""Runs with adapters side by side: what travelled, what averaging lost, ranks, rows and the score."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.report.compared import by_settings, figure
from fedtorch.report.find_runs import NamedRun
from fedtorch.report.groups import group_name
from fedtorch.tracking.run_folder import Run

ERROR = "adapter/aggregation_error"
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
    over the rounds, and that of the last one. The score is the micro mean of the final evaluation.

    Raises:
        ConfigError: a run has no adapter.
    """
    for _, run in runs:
        if not _adapter(run):
            raise ConfigError(f"{run.folder} has no task.model.adapter; name runs with adapters")
    lines = ["| " + " | ".join(_HEADS) + " |", "|---|---|" + "---:|" * (len(_HEADS) - 2)]
    for group in by_settings(runs):
        found, (_, first) = [run for _, run in group], group[0]
        rounds = [run.of_kind("round") for run in found]
        errors = [[r["extra"][ERROR] for r in one if r.get("extra", {}).get(ERROR) is not None] for one in rounds]
        metric, scores = _scores(found)
        columns = [
            group_name([name for name, _ in group]) + (f" (n={len(group)})" if len(group) > 1 else ""),
            _rule(first),
            str(_adapter(first).get("r", "")),
            str(sum(record.get("examples", 0) for record in first.last.values())),
            str(first.last_round),
            *(figure([fmean(r[name] for r in one) / 1e6 for one in rounds if one], 3)
              for name in ("bytes_up", "bytes_down")),
            figure([fmean(one) for one in errors if one], 4),
            figure([one[-1] for one in errors if one], 4),
            f"{figure(scores, 4)} {metric}".strip(),
        ]  # fmt: skip
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines) + "\n"


def _adapter(run: Run) -> dict[str, Any]:
    found = run.setting("task.model.adapter")
    return dict(found) if isinstance(found, dict) else {}


def _rule(run: Run) -> str:
    """The algorithm, and what of the factors is private or frozen."""
    parts = [f"{kind} {', '.join(patterns)}" for kind in ("private", "frozen")
             if (patterns := run.setting(f"partition.{kind}"))]  # fmt: skip
    return "; ".join([str(run.setting("algorithm.name") or "fedavg"), *parts]).replace("|", "\\|")


def _scores(runs: Sequence[Run]) -> tuple[str, list[float]]:
    """The first metric of the final evaluation, and its micro mean in each run that has one."""
    metric, values = "", list[float]()
    for run in runs:
        final = [record for record in run.of_kind("eval_total") if record["label"] == "final"]
        if final and (metrics := final[-1]["metrics"]):
            metric = metric or next(iter(metrics))
            if (mean := metrics.get(metric, {}).get("micro")) is not None:
                values.append(mean)
    return metric, values
