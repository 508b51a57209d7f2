"""Several runs in one picture: a line for each group, the mean over its seeds, with a band of the spread."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtorch.report.groups import Band, Group, charts
from fedtorch.report.plots import MAX_CHARTS, MAX_NAMED, plain_text

log = logging.getLogger(__name__)


def plot_comparison(groups: Sequence[Group], out: Path) -> list[Path]:
    """Write `compare_loss.png` and `compare_SPLIT_METRIC.png`, each with all groups; the paths of what was written."""
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
        _draw(paths[-1], title, y_label, bands)
    return paths


def _draw(path: Path, title: str, y_label: str, bands: Mapping[str, Band]) -> None:
    # imported here: it takes a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    is_crowded = len(bands) > MAX_NAMED
    for index, (name, band) in enumerate(bands.items()):
        color, dash = f"C{index % 10}", ("-", "--", ":")[index // 10 % 3]
        marker = "o" if len(band.xs) < 30 else None
        axes.plot(band.xs, band.mean, dash, label=plain_text(name), color=color, lw=1.4, marker=marker, ms=3)
        if any(band.spread):
            axes.fill_between(band.xs, band.low, band.high, color=color, alpha=0.15, lw=0)
    axes.set(title=f"{title}, mean and standard deviation over seeds", xlabel="round", ylabel=y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small" if is_crowded else "small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
