"""One page about runs that needs nothing else: tables that sort, curves, bars, partitions, what sets the runs apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape

from fedtorch.core.terminal import Cell
from fedtorch.report.find_runs import Found
from fedtorch.report.groups import Group, differences
from fedtorch.report.html_curves import curves
from fedtorch.report.html_heat import heat_map
from fedtorch.report.html_scores import clients_table, runs_table, scores_table, splits, spread_table
from fedtorch.report.html_style import document
from fedtorch.report.html_table import note, section, table
from fedtorch.report.timeline import timeline
from fedtorch.tracking.privacy_statement import promise
from fedtorch.tracking.trust_statement import checked

MOST_PARTITIONS = 6


def html_page(title: str, groups: Sequence[Group], metric: str, found: Found | None = None) -> str:
    """The page. metric: of the tables and bars. found: what is left out and what is merged."""
    found = found or Found()
    on = "/".join(splits(groups, metric))
    where = f" on {on}" if on else ""
    return document(
        title,
        f"<p>{escape(_head(groups))}</p>",
        section("Runs", runs_table(groups, metric)),
        section("Privacy", _privacy(groups)),
        section("Checked by the silos", _checked(groups)),
        section("What sets them apart", _apart(groups)),
        section("Curves", curves(groups, metric)),
        section("Who trained when", _timelines(groups)),
        section(f"All scores{where}", scores_table(groups, metric)),
        section(f"{metric}{where}: how clients spread", spread_table(groups, metric)),
        section(f"{metric} of each client{where}", clients_table(groups, metric)),
        section("Rows of train, clients by labels", _partitions(groups)),
        section("Left out", "".join(map(note, found.left_out))),
        section("Counted once", "".join(map(note, found.merged))),
    )


def _head(groups: Sequence[Group]) -> str:
    runs = sum(len(group.runs) for group in groups)
    text = f"{runs} run{'s' * (runs != 1)}"
    if runs > len(groups):
        text += (
            f" in {len(groups)} row{'s' * (len(groups) != 1)}: those that differ in nothing but the seed are one row"
        )
    return f"{text}. A click on a heading sorts, the pointer on a curve or bar shows its figure."


def _privacy(groups: Sequence[Group]) -> str:
    """A line for each run that promised something."""
    runs = [run for group in groups for run in group.runs if run.privacy]
    return "".join(f"<p>{escape(run.name)}: {escape(promise(run.privacy))}</p>" for run in runs)


def _checked(groups: Sequence[Group]) -> str:
    """A line for each run whose server was checked."""
    runs = [run for group in groups for run in group.runs if run.trust]
    return "".join(f"<p>{escape(run.name)}: {escape(checked(run.trust))}</p>" for run in runs)


def _timelines(groups: Sequence[Group]) -> str:
    """A picture of each run whose rounds wait for nobody."""
    runs = [run for group in groups for run in group.runs]
    return "".join(f"<h3>{escape(run.name)}</h3>{picture}" for run in runs if (picture := timeline(run)))


def _apart(groups: Sequence[Group]) -> str:
    if len(groups) < 2:
        return ""
    found = differences(groups)
    if not found:
        return note("No key of their configs differs.")
    rows: list[list[Cell]] = []
    for key, values in found.items():
        texts = ["" if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
        rows.append([(key, key), *((text[:200], text[:200]) for text in texts)])
    return table(["key", *(group.name for group in groups)], rows, texts=True)


def _partitions(groups: Sequence[Group]) -> str:
    """A heat map for each partition that was recorded, with the runs that have it."""
    found: dict[str, tuple[Mapping[str, Mapping[str, int]], list[str]]] = {}
    for group in groups:
        for run in group.runs:
            results = run.of_kind("result")
            labels = (results[-1].get("task") or {}).get("labels") if results else None
            if labels:
                names = found.setdefault(json.dumps(labels, sort_keys=True), (labels, []))[1]
                names += [group.name] if group.name not in names else []
    shown = list(found.values())[:MOST_PARTITIONS]
    has_names = len(groups) > 1
    return "".join(
        (f"<h3>{escape(', '.join(names))}</h3>" if has_names else "") + heat_map(labels) for labels, names in shown
    )
