"""`fedtorch report sweep`: the score over a swept key as a table and as pictures, a line per client and overall."""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedtorch.core.shown import for_csv, markdown_row
from fedtorch.report.compared import figure, out_folder, read_all, say_written, show_page
from fedtorch.report.groups import make_groups
from fedtorch.report.plots import MAX_NAMED, plain_text
from fedtorch.report.sweep_scores import AVERAGES, Line, Sweep, sweep_of

LOGARITHMIC = 10
"""The axis of a key is logarithmic where its largest value is so many times its smallest."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sweep`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a sweep, or folders of runs")
    parser.add_argument("--over", metavar="KEY", help="swept key, such as client.lr; default: the one they differ in")
    parser.add_argument("--metric", help="score to show; default: the one the first run was selected by")
    parser.add_argument("--out", type=Path, help="folder for table and pictures; default: RUN/report")
    parser.add_argument("--no-plots", action="store_true", help="write the tables only")


def make(args: argparse.Namespace) -> None:
    """Print and write the table; write the pictures.

    Raises:
        ConfigError: a folder has no run, the runs do not differ in the key, or none has the metric.
    """
    runs = read_all(args.runs)
    metric = args.metric or next((name for _, run in runs if (name := run.metric())), "loss")
    sweep = sweep_of(make_groups(runs), metric, args.over)
    out = out_folder(args.out, args.runs)
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", f"sweep_{sweep.key}_{metric}")
    paths = [show_page(sweep_markdown(sweep), out / f"{stem}.md"), out / f"{stem}.csv"]
    paths[1].write_text(sweep_csv(sweep))
    say_written([*paths, *([] if args.no_plots else plot_sweep(sweep, out, stem))])


def sweep_markdown(sweep: Sweep) -> str:
    """A row for each value, a column for each client; in percent where all figures are shares."""
    scale = 100 if sweep.is_percent else 1
    several = len(sweep.lines) > 1
    clients = [f"{client} ({n})" for client, n in sweep.clients.items()]
    header = [sweep.key, *(["runs"] if several else []), *clients, "Macro", "Micro"]
    lines = [f"{sweep.metric}{', percent' if sweep.is_percent else ''} (examples in brackets)", ""]
    lines += [markdown_row(header), "|---|" + ("---|" if several else "") + "---:|" * (len(clients) + 2)]
    for line in sweep.lines:
        for point in line.points:
            values = [point.figures.get(name, []) for name in (*sweep.clients, *AVERAGES)]
            cells = [figure([scale * value for value in row], 2) for row in values]
            lines.append(markdown_row([str(point.value), *([line.name or "-"] if several else []), *cells]))
    return "\n".join(lines) + "\n"


def sweep_csv(sweep: Sweep) -> str:
    """For programs: mean and standard deviation over seeds of every client and average, as recorded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [*sweep.clients, *AVERAGES]
    heads = [sweep.key, "runs", "seeds", *(f"{name}{part}" for name in names for part in ("", "_std"))]
    writer.writerow([for_csv(head) for head in heads])
    for line in sweep.lines:
        for point in line.points:
            cells: list[object] = []
            for name in names:
                values = point.figures.get(name, [])
                cells += [fmean(values) if values else "", stdev(values) if len(values) > 1 else ""]
            seeds = max(map(len, point.figures.values()), default=0)
            writer.writerow([for_csv(cell) for cell in (point.value, line.name, seeds, *cells)])
    return text.getvalue()


def plot_sweep(sweep: Sweep, out: Path, stem: str) -> list[Path]:
    """One picture with the clients and averages of each line; of several lines one more with their micro averages."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    if len(sweep.lines) > 1:
        overall = {line.name or "others": _curve(sweep, line, "micro") for line in sweep.lines}
        paths.append(_draw(sweep, "micro", {}, overall, out / f"{stem}.png"))
    for line in sweep.lines:
        clients = {name: _curve(sweep, line, name) for name in sweep.clients}
        averages = {name: _curve(sweep, line, name) for name in AVERAGES}
        part = f"_{re.sub(r'[^A-Za-z0-9_=-]', '_', line.name)}"[:80] if len(sweep.lines) > 1 else ""
        paths.append(_draw(sweep, line.name, clients, averages, out / f"{stem}{part}.png"))
    return paths


Curve = list[tuple[float, Sequence[float]]]
"""(place on the axis, a figure per seed)"""


def _ticks(sweep: Sweep) -> list[Any]:
    """The values of the key, where they are no numbers: those of the longest line first."""
    longest = sorted(sweep.lines, key=lambda line: -len(line.points))
    return list(dict.fromkeys(str(point.value) for line in longest for point in line.points))


def _curve(sweep: Sweep, line: Line, name: str) -> Curve:
    ticks = _ticks(sweep)
    return [
        (point.value if sweep.is_numeric else ticks.index(str(point.value)), point.figures[name])
        for point in line.points
        if point.figures.get(name)
    ]


def _draw(sweep: Sweep, title: str, thin: Mapping[str, Curve], heavy: Mapping[str, Curve], path: Path) -> Path:
    # imported here: it takes a second
    from fedtorch.report.figure import RunFigure

    drawing = RunFigure(figsize=(9, 5), layout="constrained")
    axes = drawing.subplots()
    is_crowded = len(thin) > MAX_NAMED
    for index, (name, curve) in enumerate(thin.items()):
        look: dict[str, Any] = {"color": "0.75", "lw": 0.5} if is_crowded else {"color": f"C{index % 10}", "lw": 1.0}
        means = [fmean(values) for _, values in curve]
        label = None if is_crowded else plain_text(name)
        axes.plot(
            [x for x, _ in curve], means, ("-", "--", ":")[index // 10 % 3], marker="o", ms=3, label=label, **look
        )
    for index, (name, curve) in enumerate(heavy.items()):
        xs, means = [x for x, _ in curve], [fmean(values) for _, values in curve]
        spread = [stdev(values) if len(values) > 1 else 0.0 for _, values in curve]
        color = ("black", "0.4")[index % 2] if thin else f"C{index % 10}"
        axes.errorbar(xs, means, spread if any(spread) else None, color=color, lw=2.2, marker="o", ms=4, capsize=3,
                      ls=("--" if thin and name == "macro" else "-"), label=plain_text(name))  # fmt: skip
    _lay_out_axis(axes, sweep)
    over = f"{sweep.metric} over {sweep.key}" + (f" ({title})" if title else "")
    axes.set(title=plain_text(over), xlabel=sweep.key, ylabel=sweep.metric)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    drawing.savefig(path, dpi=120)
    return path


def _lay_out_axis(axes: Any, sweep: Sweep) -> None:
    values = sorted({point.value for line in sweep.lines for point in line.points}) if sweep.is_numeric else []
    if values and values[0] > 0 and values[-1] >= LOGARITHMIC * values[0]:
        axes.set_xscale("log")
    if values and len(values) <= MAX_NAMED:
        axes.set_xticks(values, [f"{value:g}" for value in values], minor=False)
        axes.minorticks_off()
    elif not values:
        ticks = _ticks(sweep)
        axes.set_xticks(
            range(len(ticks)), [plain_text(tick) for tick in ticks], rotation=30, ha="right", fontsize="small"
        )
