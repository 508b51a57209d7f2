"""Figures of FewFedWeight: histograms of energies (3), every task's improvement (4), weights over rounds (5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedtorch.core import histograms
from fedtorch.metrics.apir import Comparison
from fedtorch.report.plots import plain_text, plot_lines, run_charts
from fedtorch.tracking.run_folder import Run


def plot_tasks(title: str, comparisons: Sequence[Comparison], path: Path) -> Path:
    """One row of bars per client, its tasks by improvement in percent; the mean over `comparisons` (seeds).

    Tasks that tie in every comparison are left out, as in the paper; their number stands in the client's title.
    A task whose base is 0 has no rate: it stands at the right end with a cross in place of a bar.
    """
    from fedtorch.report.figure import RunFigure  # imports matplotlib

    clients = comparisons[0].rates
    figure = RunFigure(figsize=(11, 3.2 * len(clients)), layout="constrained")
    for axes, client in zip(figure.subplots(len(clients), squeeze=False)[:, 0], clients, strict=True):
        rates = moved(client, comparisons)
        order = sorted(rates, key=lambda task: (rates[task] is None, -(rates[task] or 0.0)))
        heights = [100 * (rates[task] or 0.0) for task in order]
        axes.bar(range(len(order)), heights, color=["C0" if height >= 0 else "C3" for height in heights])
        crosses = [place for place, task in enumerate(order) if rates[task] is None]
        axes.plot(crosses, [0.0] * len(crosses), "kx", ms=5)
        axes.set_xticks(range(len(order)), [task.rpartition("/")[0] for task in order], rotation=90, fontsize=7)
        ties = len(clients[client]) - len(rates)
        shown = f"{client} ({ties} ties left out)" if ties else client
        axes.set(ylabel="PIR, percent", title=f"{title}: {shown}" if client == next(iter(clients)) else shown)
        axes.axhline(0, color="black", lw=0.8)
        axes.grid(alpha=0.3, axis="y")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def moved(client: str, comparisons: Sequence[Comparison]) -> dict[str, float | None]:
    """A client's tasks that are no tie in some comparison -> mean rate, None where every one has a base of 0."""
    rates = {task: [c.rates[client][task] for c in comparisons] for task in comparisons[0].rates[client]}
    return {task: _mean(found) for task, found in rates.items() if any(rate != 0 for rate in found)}


def energies(run: Run) -> dict[str, dict[str, dict[int, float]]]:
    """client -> `energy_top` or `energy_all` -> left end of a bin -> tokens, in all rounds together."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in run.of_kind("client"):
        for name, bins in histograms.read(record).items():
            total = found.setdefault(record["client"], {}).setdefault(name, {})
            for place, count in bins.items():
                total[place] = total.get(place, 0.0) + count
    return found


def plot_energies(run: Run, path: Path) -> list[Path]:
    """A panel for each client: its pseudo tokens' energies over the k largest and over all logits, in shares.

    Of all rounds together; nothing for a run that recorded none.
    """
    clients = energies(run)
    if not clients:
        return []
    from fedtorch.report.figure import RunFigure  # imports matplotlib

    figure = RunFigure(figsize=(8, 2.4 * len(clients)), layout="constrained")
    panels = figure.subplots(len(clients), squeeze=False, sharex=True)[:, 0]
    labels = {"energy_top": f"{run.setting('algorithm.top_k') or 'k'} largest logits", "energy_all": "all logits"}
    for axes, (client, found) in zip(panels, clients.items(), strict=True):
        for index, (name, bins) in enumerate(found.items()):
            shares = [count / sum(bins.values()) for count in bins.values()]
            axes.bar(list(bins), shares, width=1, align="edge", alpha=0.5, color=f"C{index}", label=labels.get(name))
        tokens = sum(next(iter(found.values())).values())
        axes.set(title=f"{plain_text(client)} ({tokens:.0f} tokens)", ylabel="share of tokens")
        axes.grid(alpha=0.3, axis="y")
    panels[0].legend()
    panels[-1].set_xlabel(f"{plain_text(run.name)}: energy of a pseudo token")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return [path]


def plot_weights(run: Run, path: Path) -> list[Path]:
    """Every client's weight in the aggregation, round by round; nothing for a run that averages nothing."""
    if (chart := run_charts(run).get("weights")) is None:
        return []
    plot_lines(path, f"{run.name}: weight in the aggregation", (chart.x, chart.y), chart.lines)
    return [path]


def _mean(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return fmean(known) if known else None
