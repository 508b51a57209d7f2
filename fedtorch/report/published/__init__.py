"""Figures that papers print, to be shown beside ours; one module per paper."""

from __future__ import annotations

from difflib import get_close_matches

from fedtorch.report.published.fedmatch import FEDMATCH
from fedtorch.report.published.lorar import LORAR
from fedtorch.report.published.table import Paper, PublishedRow, row_names
from fedtorch.tracking.run_folder import Run

PAPERS = {f"{paper.name}/{paper.metric}": paper for paper in (LORAR, *FEDMATCH)}


def unknown_row(run: Run) -> str:
    """Says that `run.published` names no row of a table, and which there are; empty where it does, or names none."""
    wanted = run.setting("run.published")
    known = [f"{paper.name}/{name}" for paper in PAPERS.values() for name in (*paper.rows, *paper.aliases)]
    if wanted is None or wanted in known or wanted in [name.partition("/")[2] for name in known]:
        return ""
    near = get_close_matches(str(wanted), known, 3) or known[:3]
    return f"{run.folder}: run.published is {wanted}, which is no row of a paper's table; there are {', '.join(near)}"


def find_row(run: Run, metric: str | None = None) -> tuple[Paper, PublishedRow, str] | None:
    """The published row for a run, of this metric if given, and the name of its shipped config.

    `run.published` of its config (`lorar/fedopt_lorar`) names it, else `run.name` (see `row_names`). None also if the
    run has no client in common with the paper's table.
    """
    for wanted in (run.setting("run.published"), *row_names(run.name)):
        paper_name, _, row_name = str(wanted or "").rpartition("/")
        for paper in PAPERS.values():
            config = paper.aliases.get(row_name, row_name)
            row = paper.rows.get(config)
            if metric is not None and paper.metric != metric:
                continue
            if row is not None and paper_name in ("", paper.name) and set(run.clients) & set(paper.clients):
                return paper, row, f"{paper.name}/{config}"
    return None
