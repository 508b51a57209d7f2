"""A run's curves as PNG files: every client's losses and weights, and the scores during training."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtorch.core.scores import RECEIVED
from fedtorch.tracking.run_folder import Run

if TYPE_CHECKING:
    from fedtorch.report.figure import RunFigure

Line = tuple[Sequence[float], Sequence[float]]

log = logging.getLogger(__name__)

MAX_CHARTS = 40  # of a run: a few-shot client has dozens of tasks, each with a score
MAX_NAMED = 20  # more lines than this get no name and no colour of their own


class Chart(NamedTuple):
    """Lines of a run over its steps or rounds."""

    title: str
    """above the lines"""
    x: str
    """caption of the horizontal axis"""
    y: str
    """caption of the vertical axis"""
    lines: Mapping[str, Line]
    """client -> line"""
    heavy: Mapping[str, Line]
    """means over all clients"""
    chosen: int | None = None
    """the round whose weights were scored, where the axis has rounds"""


def run_charts(run: Run) -> dict[str, Chart]:
    """Name of a PNG -> what is on it; nothing for what was not recorded. Those of single tasks' scores come last."""
    chosen = run.chosen_round
    losses, weights = _per_round(run, "loss_mean"), _per_round(run, "weight")
    charts = {
        "loss_steps": Chart("training loss", "optimiser steps of the client", "loss", _steps(run), {}),
        "loss_rounds": Chart("training loss", "round", "mean loss in the round", losses, {}, chosen),
        "weights": Chart("weight in the combined update", "round", "weight", weights, {}, chosen),
    }
    scores = _scores(run)
    for label, split, metric in sorted(scores, key=lambda key: "/" in key[2].removeprefix(RECEIVED)):
        clients, averages = scores[label, split, metric]
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", f"{split}_{metric}" + ("" if label == "training" else f"_{label}"))
        charts[stem] = Chart(
            f"{metric} on {split}" + ("" if label == "training" else f" ({label})"),
            "round",
            metric,
            clients,
            averages,
            chosen,
        )
    return {stem: chart for stem, chart in charts.items() if chart.lines}


def plot_run(run: Run, out: Path, prefix: str = "") -> list[Path]:
    """Write the charts of `run` into `out` and return their paths; at most `MAX_CHARTS`, a warning names the rest."""
    charts = run_charts(run)
    if len(charts) > MAX_CHARTS:
        log.warning("%s: %d of %d charts are drawn; all scores are in its metrics.jsonl and event files",
                    run.name, MAX_CHARTS, len(charts))  # fmt: skip
    paths = []
    for stem, chart in list(charts.items())[:MAX_CHARTS]:
        paths.append(out / f"{prefix}{stem}.png")
        _save(chart_figure(run, chart), paths[-1])
    return paths


def chart_figure(run: Run, chart: Chart) -> RunFigure:
    """The chart, drawn."""
    return _drawn(f"{run.name}: {chart.title}", (chart.x, chart.y), chart.lines, chart.heavy, chart.chosen)


def _steps(run: Run) -> dict[str, Line]:
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for record in run.of_kind("steps"):
        xs, ys = found[record["client"]]
        for step, loss in enumerate(record["loss"], record["first_step"] + 1):
            xs.append(step)
            ys.append(float("nan") if loss is None else loss)
    return {name: found[name] for name in run.clients if name in found}


def _per_round(run: Run, key: str) -> dict[str, Line]:
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for record in run.of_kind("client"):
        if record.get(key) is not None and record["status"] == "ok":
            found[record["client"]][0].append(record["round"])
            found[record["client"]][1].append(record[key])
    return {name: found[name] for name in run.clients if name in found}


def _scores(run: Run) -> dict[tuple[str, str, str], tuple[dict[str, Line], dict[str, Line]]]:
    """(label, split, metric) -> (lines of the clients, macro and micro), where there is more than one round."""
    found: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for record in run.of_kind("eval"):
        for metric, (total, count) in record["metrics"].items():
            if count and total is not None:
                points = found[(record["label"], record["split"], metric)][record["client"]]
                points.append((record["round"], total / count))
    heavy: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for record in run.of_kind("eval_total"):
        for metric, total in record["metrics"].items():
            for kind in ("macro", "micro"):
                if total[kind] is not None:
                    heavy[(record["label"], record["split"], metric)][kind].append((record["round"], total[kind]))
    return {
        key: (_unzip(lines), _unzip(heavy[key]))
        for key, lines in found.items()
        if any(len(points) > 1 for points in lines.values())
    }


def _unzip(lines: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Line]:
    return {name: ([x for x, _ in points], [y for _, y in points]) for name, points in lines.items()}


def plot_lines(path: Path, title: str, axes_names: tuple[str, str], lines: Mapping[str, Line]) -> None:
    """Draw named lines into a PNG file."""
    _save(_drawn(title, axes_names, lines, {}), path)


def _save(figure: RunFigure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _drawn(
    title: str,
    axes_names: tuple[str, str],
    lines: Mapping[str, Line],
    heavy: Mapping[str, Line],
    chosen: int | None = None,
) -> RunFigure:
    # here, for matplotlib takes a second and is no part of a base installation
    from matplotlib.ticker import MaxNLocator

    from fedtorch.report.figure import RunFigure

    figure = RunFigure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    is_crowded = len(lines) > MAX_NAMED
    if is_crowded and not heavy:
        heavy = {f"median of {len(lines)} clients": _median(lines)}
    for index, (name, (xs, ys)) in enumerate(lines.items()):
        style: dict[str, Any] = {"color": "0.75", "lw": 0.5} if is_crowded else _style(index)
        marker = "o" if len(xs) < 30 else None
        axes.plot(xs, ys, label=None if is_crowded else plain_text(name), marker=marker, ms=3, **style)
    for (name, (xs, ys)), dash in zip(heavy.items(), ("-", "--"), strict=False):
        axes.plot(xs, ys, label=name, color="black", lw=2.2, ls=dash)
    if chosen is not None:
        axes.axvline(chosen, color="0.4", lw=1, ls=":", label=f"chosen round {chosen}")
    axes.set(title=plain_text(title), xlabel=axes_names[0], ylabel=axes_names[1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # rounds and steps
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize="small", ncols=1, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def plain_text(text: str) -> str:
    """A name that matplotlib takes as it is: not as a formula, nor as a line that is not to be named."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def _style(index: int) -> dict[str, Any]:
    """Ten colours, then the same ten dashed."""
    return {"color": f"C{index % 10}", "lw": 1.2, "ls": "-" if index < 10 else "--"}


def _median(lines: Mapping[str, Line]) -> Line:
    at: dict[float, list[float]] = defaultdict(list)
    for xs, ys in lines.values():
        for x, y in zip(xs, ys, strict=True):
            at[x].append(y)
    places = sorted(at)
    return places, [median(at[x]) for x in places]
