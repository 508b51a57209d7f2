"""Several runs in one picture: a line for each group, the mean over its seeds, with a band of the spread."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.report.groups import Band, Group, charts
from fedtorch.report.plots import MAX_CHARTS, MAX_NAMED, plain_text

log = logging.getLogger(__name__)

MAX_PANELS = 12
"""Clients with a panel of their own in one picture, the first ones."""


def plot_comparison(groups: Sequence[Group], out: Path) -> list[Path]:
    """Write `compare_loss.png`, `compare_SPLIT_METRIC.png` and `compare_client_losses.png`, each with all groups.

    Rings are around the rounds whose weights were scored, of every seed one. Returns the paths of what was written.
    """
    pictures = {"loss": ("training loss", "mean loss in the round", {g.label: g.losses() for g in groups})}
    for split, metric in charts(groups):
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", f"{split}_{metric}")
        pictures[stem] = (f"{metric} on {split}", metric, {g.label: g.scores(split, metric) for g in groups})
    kept = {stem: picture for stem, picture in pictures.items() if any(band.xs for band in picture[2].values())}
    if len(kept) > MAX_CHARTS:
        log.warning("%d of %d comparisons are drawn", MAX_CHARTS, len(kept))
    paths = []
    for stem, (title, y_label, bands) in list(kept.items())[:MAX_CHARTS]:
        paths.append(out / f"compare_{stem}.png")
        _draw(paths[-1], title, y_label, bands, {group.label: group.chosen_rounds for group in groups})
    clients = list(dict.fromkeys(name for group in groups for run in group.runs for name in run.clients))
    panels = {name: {group.label: group.client_losses(name) for group in groups} for name in clients[:MAX_PANELS]}
    if any(band.xs for bands in panels.values() for band in bands.values()):
        paths.append(out / "compare_client_losses.png")
        if len(clients) > MAX_PANELS:
            log.warning("%s shows %d of %d clients", paths[-1].name, MAX_PANELS, len(clients))
        _draw_panels(paths[-1], "training loss of every client", panels)
    return paths


def _draw(path: Path, title: str, y_label: str, bands: Mapping[str, Band], chosen: Mapping[str, Sequence[int]]) -> None:
    # imported here: it takes a second
    from fedtorch.report.figure import RunFigure

    figure = RunFigure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    _draw_bands(axes, bands)
    _ring(axes, bands, chosen)
    axes.set(title=f"{title}, mean and standard deviation over seeds", xlabel="round", ylabel=y_label)
    small = "x-small" if len(bands) > MAX_NAMED else "small"
    axes.legend(fontsize=small, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_panels(path: Path, title: str, panels: Mapping[str, Mapping[str, Band]]) -> None:
    from fedtorch.report.figure import RunFigure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = RunFigure(figsize=(4 * columns, 2.6 * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes, (name, bands) in zip(grid, panels.items(), strict=False):
        _draw_bands(axes, bands)
        axes.set_title(plain_text(name), fontsize="small")
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(f"{title}, mean and standard deviation over seeds")
    figure.supxlabel("round")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", fontsize="small", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _ring(axes: Any, bands: Mapping[str, Band], chosen: Mapping[str, Sequence[int]]) -> None:
    """Rings around the points of the chosen rounds, in their curve's colour, and one in the legend."""
    is_named = False
    for index, (name, band) in enumerate(bands.items()):
        at = dict(zip(band.xs, band.mean, strict=True))
        if xs := sorted({round for round in chosen.get(name, ()) if round in at}):
            axes.plot(xs, [at[x] for x in xs], "o", ms=10, mfc="none", color=f"C{index % 10}")
            is_named = True
    if is_named:
        axes.plot([], [], "o", ms=8, mfc="none", color="0.3", label="chosen round")


def _draw_bands(axes: Any, bands: Mapping[str, Band]) -> None:
    from matplotlib.ticker import MaxNLocator

    for index, (name, band) in enumerate(bands.items()):
        color, dash = f"C{index % 10}", ("-", "--", ":")[index // 10 % 3]
        marker = "o" if len(band.xs) < 30 else None
        axes.plot(band.xs, band.mean, dash, label=plain_text(name), color=color, lw=1.4, marker=marker, ms=3)
        if any(band.spread):
            axes.fill_between(band.xs, band.low, band.high, color=color, alpha=0.15, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
