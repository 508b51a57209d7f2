"""Who trained when, from a run's records: a picture of asynchronous rounds, and when they reached a score."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.files import replace_file
from fedtorch.core.scores import LOSS
from fedtorch.core.shown import markdown_row
from fedtorch.report.compared import out_folder, read_all, say_written, show_page
from fedtorch.report.find_runs import NamedRun
from fedtorch.report.svg import COLORS, LETTERS, Axes, ticks
from fedtorch.report.svg import HEIGHT as CHART_HEIGHT
from fedtorch.report.svg import WIDTH as CHART_WIDTH
from fedtorch.tracking.records import Record
from fedtorch.tracking.run_folder import Run

WIDTH, LEFT, RIGHT, ROW, BAR, BELOW = 900, 128, 14, 18, 12, 40
MOST_CLIENTS, MOST_ARRIVALS = 40, 1000
AGES = ("age 0", "1", "2 or 3", "4 or more")
"""Groups of staleness, each with a colour."""
LOST = "#bbbbbb"
_STYLE = (
    "<style>text{font:11px sans-serif;fill:#444}.grid{stroke:#ddd}.frame{fill:none;stroke:#bbb}"
    ".version{stroke:#999;stroke-dasharray:2 3}.back{fill:#fff}</style>"
)


def timeline(run: Run) -> str:
    """An SVG that stands alone: a row for each client, a bar for each training by the virtual clock.

    A bar's colour is the staleness of what came of it, grey where it did not count; a dashed line is a new version of
    the weights. Of the first `MOST_CLIENTS` clients and `MOST_ARRIVALS` trainings; empty where there are none.
    """
    arrivals = run.of_kind("arrival")[:MOST_ARRIVALS]
    names = [name for name in run.clients if any(record["client"] == name for record in arrivals)][:MOST_CLIENTS]
    if not arrivals:
        return ""
    end = max(record["arrived_s"] for record in arrivals)
    scale, bottom = (WIDTH - LEFT - RIGHT) / end, 8 + ROW * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + BELOW}" class="timeline">{_STYLE}',
        f'<rect width="{WIDTH}" height="{bottom + BELOW}" class="back"/>',
    ]
    for tick in ticks(0.0, end):
        x = LEFT + tick * scale
        parts.append(f'<path class="grid" d="M{x:.1f} 4V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 13}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{bottom + 13}" text-anchor="end">seconds of the clock</text>')
    for place, name in enumerate(names):
        shown = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
        y = 4 + ROW * place
        parts.append(f'<text x="{LEFT - 6}" y="{y + 12}" text-anchor="end">{escape(shown)}</text>')
        parts += [_bar(record, y, scale) for record in arrivals if record["client"] == name]
    for instant in versions(run).values():
        if instant <= end:
            x = LEFT + instant * scale
            parts.append(f'<path class="version" d="M{x:.1f} 4V{bottom}"/>')
    return "".join([*parts, *_legend(bottom + 20), "</svg>\n"])


def _bar(record: Record, y: float, scale: float) -> str:
    start, end = (LEFT + record[key] * scale for key in ("started_s", "arrived_s"))
    age, status = record["staleness"], record["status"]
    color = COLORS[_group(age)] if status == "ok" else LOST
    told = (
        f"{record['client']}: {record['started_s']:g} to {record['arrived_s']:g} s, from version {record['version']}, "
        f"age {age}" + ("" if status == "ok" else f", {status}")
    )
    return (
        f'<rect x="{start:.1f}" y="{y + 2:g}" width="{max(1.0, end - start - 1):.1f}" height="{BAR}" fill="{color}" '
        f'fill-opacity="0.75"><title>{escape(told)}</title></rect>'
    )


def _group(age: int) -> int:
    return age if age < 2 else 2 if age < 4 else 3


def _legend(y: float) -> list[str]:
    parts, x = [], float(LEFT)
    for name, color in [*zip(AGES, COLORS, strict=False), ("dropped or failed", LOST)]:
        parts.append(f'<rect x="{x:g}" y="{y}" width="10" height="10" fill="{color}" fill-opacity="0.75"/>')
        parts.append(f'<text x="{x + 14:g}" y="{y + 9}">{name}</text>')
        x += 30 + 7 * len(name)
    return [*parts, f'<text x="{x + 10:g}" y="{y + 9}">dashed: a new version</text>']


def write_timeline(run: Run, out: Path) -> list[Path]:
    """Write the picture as timeline.svg; no path where there is none."""
    if not (picture := timeline(run)):
        return []
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "timeline.svg", picture)
    return [out / "timeline.svg"]


def versions(run: Run) -> dict[int, float]:
    """Round -> second of the virtual clock at which its version was made, in asynchronous rounds."""
    found = {record["round"]: (record.get("extra") or {}).get("async/clock_s") for record in run.of_kind("round")}
    return {round: second for round, second in found.items() if second is not None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `time_to`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run with the section async")
    parser.add_argument("--metric", required=True, help="score, or loss, of which less is better")
    parser.add_argument("--value", required=True, type=float, help="what it is to reach, on the split of eval.split")
    parser.add_argument("--out", type=Path, help="folder for time_to.md")


def make(args: argparse.Namespace) -> None:
    """Print the table of `time_to`, and write it with a picture of the scores over the clock."""
    runs, out = read_all(args.runs), out_folder(args.out, args.runs)
    paths = [show_page(time_to_markdown(runs, args.metric, args.value), out / "time_to.md"), out / "time_to.svg"]
    replace_file(paths[1], over_clock(runs, args.metric))
    say_written(paths)


def over_clock(runs: Sequence[NamedRun], metric: str) -> str:
    """An SVG that stands alone: the micro score of each run over the seconds of its clock, a colour for each name.

    Raises:
        ConfigError: see `scores`.
    """
    found = [(name, scores(run, metric)) for name, run in runs]
    points = [(second, score) for _, own in found for _, second, score in own]
    low, high = min(score for _, score in points), max(score for _, score in points)
    axes = Axes((0.0, max(second for second, _ in points)), (low, high if high > low else low + 1.0))
    names = list(dict.fromkeys(name for name, _ in found))
    tag = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT + 16}">{_STYLE}'
    parts = [tag, f'<rect width="{CHART_WIDTH}" height="{CHART_HEIGHT + 16}" class="back"/>']
    parts += axes.frame("seconds of the clock", metric)
    for name, own in found:
        line, color = axes.path([(second, score) for _, second, score in own]), COLORS[names.index(name) % len(COLORS)]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    for place, name in enumerate(names):
        x, color = 52 + 110 * place, COLORS[place % len(COLORS)]
        parts.append(f'<path d="M{x} {CHART_HEIGHT + 6}h14" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 18}" y="{CHART_HEIGHT + 10}">{escape(name)}</text>')
    return "".join([*parts, "</svg>\n"])


def scores(run: Run, metric: str) -> list[tuple[int, float, float]]:
    """(version, second of the clock, micro score) of each evaluation during training.

    Raises:
        ConfigError: the run has no such clock, or never measured that.
    """
    clock = versions(run)
    if not clock:
        raise ConfigError(f"{run.folder} has no virtual clock; name runs with the section async")
    found = [
        (record["round"], clock[record["round"]], record["metrics"][metric]["micro"])
        for record in run.of_kind("eval_total")
        if record["label"] == "training" and metric in record["metrics"] and record["round"] in clock
    ]
    if not found:
        raise ConfigError(f"{run.folder} has no {metric} of a version; name another --metric, or set eval.every")
    return [(at, second, score) for at, second, score in found if score is not None]


def time_to(run: Run, metric: str, value: float) -> Mapping[str, Any] | None:
    """The first version whose micro score reaches the value: `version`, `seconds`, `updates`, `bytes`; None: none did.

    Raises:
        ConfigError: the run has no such clock, or never measured that.
    """
    sign = -1 if metric == LOSS else 1
    reached = [(at, second) for at, second, score in scores(run, metric) if sign * score >= sign * value]
    if not reached:
        return None
    at, second = min(reached)
    updates = [record for record in run.of_kind("arrival") if record["round"] <= at and record["number"] is not None]
    total = next(record["total"] for record in run.of_kind("round") if record["round"] == at)
    moved = total.get("bytes_up", 0) + total.get("bytes_down", 0)
    return {"version": at, "seconds": second, "updates": len(updates), "bytes": moved}


def time_to_markdown(runs: Sequence[NamedRun], metric: str, value: float) -> str:
    """A row for each run: when it reached the value."""
    sign = "at most" if metric == LOSS else "at least"
    lines = [f"{metric} {sign} {value:g}", "", "| run | version | seconds of the clock | updates | bytes |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, run in runs:
        at = time_to(run, metric, value)
        shown = ["-"] * 4 if at is None else [
            str(at["version"]), f"{at['seconds']:.2f}", str(at["updates"]), f"{at['bytes']:,}",
        ]  # fmt: skip
        lines.append(markdown_row([name, *shown]))
    return "\n".join(lines) + "\n"
