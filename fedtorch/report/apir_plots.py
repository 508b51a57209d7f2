"""Figures of FewFedWeight: bars of every task's improvement (figure 4), and the clients' weights over rounds (5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedtorch.metrics.apir import Comparison
from fedtorch.report.plots import plot_lines
from fedtorch.tracking.run_folder import Run


def plot_tasks(title: str, comparisons: Sequence[Comparison], path: Path) -> Path:
    """One row of bars per client, its tasks by improvement in percent; the mean over `comparisons` (seeds).

    A task whose base is 0 has no rate: it stands at the right end with a cross in place of a bar.
    """
    # imported here: it takes a second, and it is not part of a base installation
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients = comparisons[0].rates
    figure = Figure(figsize=(11, 3.2 * len(clients)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, client in zip(figure.subplots(len(clients), squeeze=False)[:, 0], clients, strict=True):
        rates = {task: _mean([c.rates[client][task] for c in comparisons]) for task in clients[client]}
        order = sorted(rates, key=lambda task: (rates[task] is None, -(rates[task] or 0.0)))
        heights = [100 * (rates[task] or 0.0) for task in order]
        axes.bar(range(len(order)), heights, color=["C0" if height >= 0 else "C3" for height in heights])
        crosses = [place for place, task in enumerate(order) if rates[task] is None]
        axes.plot(crosses, [0.0] * len(crosses), "kx", ms=5)
        axes.set_xticks(range(len(order)), [task.rpartition("/")[0] for task in order], rotation=90, fontsize=7)
        axes.set(ylabel="PIR, percent", title=f"{title}: {client}" if client == next(iter(clients)) else client)
        axes.axhline(0, color="black", lw=0.8)
        axes.grid(alpha=0.3, axis="y")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def plot_weights(run: Run, path: Path) -> list[Path]:
    """Every client's weight in the aggregation, round by round; nothing for a run that averages nothing."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for record in run.of_kind("client"):
        if record.get("weight") and record["status"] == "ok":
            xs, ys = lines.setdefault(record["client"], ([], []))
            xs.append(record["round"])
            ys.append(record["weight"])
    if not lines:
        return []
    plot_lines(path, f"{run.name}: weight in the aggregation", ("round", "weight"), lines)
    return [path]


def _mean(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return fmean(known) if known else None
