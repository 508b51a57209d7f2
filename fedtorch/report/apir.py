"""`python -m fedtorch.report apir`: few-shot runs against a base run, as FewFedWeight's tables and figures."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import RECEIVED
from fedtorch.core.shown import for_markdown, markdown_row
from fedtorch.metrics.apir import Comparison, compare
from fedtorch.report.apir_plots import plot_energies, plot_tasks, plot_weights
from fedtorch.report.compared import (
    counted_once,
    figure,
    out_folder,
    same_settings,
    say_left_out,
    say_written,
    show_page,
)
from fedtorch.report.find_runs import Found
from fedtorch.report.published.changed import changed
from fedtorch.report.published.fewfedweight import BASE, CLIENTS, COSTS, Published, row_of
from fedtorch.tracking.run_folder import Run, read_run


@dataclass(frozen=True)
class ApirRow:
    """Runs that differ in nothing but the seed."""

    runs: list[Run]
    """one for each seed"""
    comparisons: list[Comparison]
    """of each run with the base of its seed"""

    @property
    def name(self) -> str:
        """The first run's."""
        return self.runs[0].name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `apir`."""
    for name, about in (
        ("--base", "run that the others are compared with, or one per seed (Data Silo)"),
        ("--new", "runs to compare; those that differ only in the seed share a row"),
    ):
        parser.add_argument(name, help=about, nargs="+", type=Path, metavar="RUN", required=True)
    default = "RUN/report of the new run, and of several a folder below `report` beside the first"
    parser.add_argument("--out", type=Path, help=f"folder for apir.md and the plots; default: {default}")
    parser.add_argument("--no-plots", action="store_true", help="write the tables only")


def make(args: argparse.Namespace) -> None:
    """Print the tables; write them, histograms of energies (figure 3), bars per task (4), weights (5).

    Raises:
        ConfigError: a folder is no run, was not evaluated, or was evaluated on other tasks than its base.
    """
    bases = [read_run(folder) for folder in args.base]
    found = counted_once(Found([(run.name, run) for run in map(read_run, args.new)]))
    say_left_out(found)
    rows = group([run for _, run in found.runs], bases)
    out = out_folder(args.out, args.new)
    page = "\n".join([tables(rows), costs(bases[0], rows), *differences(bases[0], rows)])
    paths = [show_page(page, out / "apir.md")]
    for index, row in enumerate([] if args.no_plots else rows):
        stem = f"{row.name.replace('/', '-')}" + (f"-{index}" if [r.name for r in rows].count(row.name) > 1 else "")
        paths += [plot_tasks(row.name, row.comparisons, out / f"{stem}_tasks.png")]
        paths += plot_weights(row.runs[0], out / f"{stem}_weights.png")
        paths += plot_energies(row.runs[0], out / f"{stem}_energies.png")
    say_written(paths)


def results(run: Run) -> dict[str, dict[str, float]]:
    """client -> `<task>/<metric>` -> score, of the evaluation that counts.

    Raises:
        ConfigError: the run was not evaluated on tasks.
    """
    found = {}
    evaluations = run.last_evaluations()
    for client, metrics in (evaluations[0].metrics if evaluations else {}).items():
        kept = {name: pair for name, pair in metrics.items() if "/" in name and not name.startswith(RECEIVED)}
        tasks = {name: total / n for name, (total, n) in kept.items() if n}
        found[client] = {name: score for name, score in tasks.items() if not name.endswith("/undefined")}
    if not any(found.values()):
        raise ConfigError(f"{run.folder} has no scores of single tasks; name finished runs of task.name: fewshot")
    return found


def group(runs: Sequence[Run], bases: Sequence[Run]) -> list[ApirRow]:
    """The runs as rows, each compared with the base of its own seed, or the only one."""
    by_seed = {base.setting("run.seed"): base for base in bases}
    rows: dict[str, ApirRow] = {}
    for run in runs:
        seed = run.setting("run.seed")
        base = bases[0] if len(bases) == 1 else by_seed.get(seed)
        if base is None:
            raise ConfigError(f"{run.folder} has run.seed {seed}, of which there is no run among --base; add it")
        try:
            comparison = compare(results(base), results(run))
        except ValueError as error:
            raise ConfigError(f"{run.folder} and its base {base.folder} do not fit: {error}") from None
        row = rows.setdefault(_identity(run), ApirRow([], []))
        row.runs.append(run)
        row.comparisons.append(comparison)
    return list(rows.values())


def tables(rows: Sequence[ApirRow]) -> str:
    """One markdown table per table of the paper that the runs' names belong to, and one for the others."""
    blocks: dict[str, list[str]] = {}
    for row in rows:
        match = row_of(row.name)
        published = match[1] if match else None
        blocks.setdefault(published.table if published else "Other runs", []).append(_line(row, published))
    head = "| run | APIR % | pooled % | win | lose | tie | undefined | pairs | published APIR %, win/lose/tie |\n"
    head += "|---|" + "---:|" * 7 + "---|\n"
    texts = [f"{title}\n\n{head}" + "".join(lines) for title, lines in sorted(blocks.items())]
    notes = []
    for row in rows:
        notes += [f"- {for_markdown(run.name)}: not finished\n" for run in row.runs if not run.is_finished]
    return "\n".join(texts) + ("\n" + "".join(notes) if notes else "")


def costs(base: Run, rows: Sequence[ApirRow]) -> str:
    """Table 4: seconds of generating and of training, rows trained on and bytes, per client and round."""
    lines = ["Table 4, cost per client and round\n\n"]
    lines += ["| run | generate s | train s | rows | sent MB | received MB | published generate/train |\n"]
    lines += ["|---|" + "---:|" * 5 + "---|\n"]
    for name, run in [(base.name, base), *((row.name, row.runs[0]) for row in rows)]:
        done = [record for record in run.of_kind("client") if record["status"] == "ok" and record.get("steps")]
        if not done:
            continue

        def mean(key: str, other: str, done: Sequence[dict[str, float]] = done) -> float:
            return fmean(record.get(key, record.get(other, 0.0)) or 0.0 for record in done)

        match = row_of(name)
        paper = "/".join(f"{unit:g}" for unit in COSTS[match[0]]) if match and match[0] in COSTS else "-"
        epochs = run.setting("client.epochs") or 1
        trained = fmean(record.get("rows") or record["examples"] * epochs for record in done)
        cells = [f"{mean('generate_s', ''):.2f}", f"{mean('train_s', 'seconds'):.2f}", f"{trained:.0f}"]
        cells += [_megabytes(run, done, way) for way in ("sent_bytes", "received_bytes")]
        lines.append(markdown_row([name, *cells, paper]) + "\n")
    return "".join(lines)


def differences(base: Run, rows: Sequence[ApirRow]) -> list[str]:
    """How the runs and their base differ from the rows whose published figures stand beside them; a line each."""
    matches = [(row, match) for row in rows if (match := row_of(row.name)) is not None]
    notes = []
    for row, (config, published) in matches:
        of_paper = published.win + published.lose + published.tie
        if (pairs := row.comparisons[0].pairs) != of_paper:
            notes.append(f"- {for_markdown(row.name)}: {pairs} pairs of task and client (paper: {of_paper})\n")
        if settings := changed(row.runs[0], f"fewfedweight/{config}"):
            notes.append(f"- {for_markdown(row.name)}: {settings}\n")
    bases = {f"silo_{c.rpartition('_')[2]}" if published.table == CLIENTS else BASE for _, (c, published) in matches}
    for config in sorted(bases):
        if settings := changed(base, f"fewfedweight/{config}"):
            notes.append(f"- base {for_markdown(base.name)}: {settings}\n")
    return ["".join(notes)] if notes else []


def _megabytes(run: Run, done: Sequence[dict[str, Any]], way: str) -> str:
    """Per client and round: as its algorithm counted them, else the round's traffic shared out over its clients.

    A centralized run has no clients to send anything.
    """
    if run.setting("paradigm") == "centralized":
        return "-"
    if any(way in record for record in done):
        return f"{fmean(record.get(way, 0.0) for record in done) / 1e6:.2f}"
    traffic = {"sent_bytes": "bytes_up", "received_bytes": "bytes_down"}[way]
    total = sum(record.get(traffic, 0) for record in run.of_kind("round"))
    return f"{total / len(done) / 1e6:.2f}"


def _line(row: ApirRow, published: Published | None) -> str:
    def over_seeds(value: Callable[[Comparison], float], digits: int) -> str:
        values = [value(comparison) for comparison in row.comparisons]
        return "-" if any(map(math.isnan, values)) else figure(values, digits)

    counts = [over_seeds(attrgetter(key), int(len(row.runs) > 1)) for key in _COUNTS]
    rates = [over_seeds(lambda c: 100 * c.apir, 1), over_seeds(lambda c: 100 * c.pooled, 1)]
    shown = f"{row.name} (n={len(row.runs)})" if len(row.runs) > 1 else row.name
    paper = f"{published.apir} ({published.win}/{published.lose}/{published.tie})" if published else "-"
    return markdown_row([shown, *rates, *counts, row.comparisons[0].pairs, paper]) + "\n"


_COUNTS = ("win", "lose", "tie", "undefined")


def _identity(run: Run) -> str:
    """Equal for runs of one name that differ only in seed, folder and bookkeeping."""
    return f"{run.name} {same_settings(run)}"
