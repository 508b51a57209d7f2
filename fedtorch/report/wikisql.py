"""Runs as rows and measures as columns, all examples together, with the FedParsing paper's figures below ours."""

from __future__ import annotations

from collections.abc import Sequence

from fedtorch.core.shown import for_markdown, markdown_row
from fedtorch.report.compared import by_settings, figure
from fedtorch.report.find_runs import NamedRun
from fedtorch.report.groups import group_name
from fedtorch.report.published.changed import changed
from fedtorch.report.published.fedparsing import MEASURES, NAMES, QUESTIONS, REMARKS, TABLE, TITLE
from fedtorch.tracking.records import totals
from fedtorch.tracking.run_folder import Evaluation, Run

_COLUMNS = (*MEASURES, "logical_form", "execution")
_HEADS = ("Overall", "Agg", "Sel", "Wn", "Wc", "Op", "Val", "logical form", "execution")


def measures_markdown(runs: Sequence[NamedRun]) -> str:
    """The table in percent, one decimal. Runs that differ in the seed alone share a row (mean ± standard deviation).

    dev is that of the round that was kept as the best.
    """
    lines = ["| run | split | examples | " + " | ".join(_HEADS) + " |", "|---|---|" + "---:|" * (len(_HEADS) + 1)]
    notes: list[str] = []
    for group in by_settings(runs):
        name = group_name([name for name, _ in group]) + (f" (n={len(group)})" if len(group) > 1 else "")
        for split in ("test", "dev"):
            found = [evaluation for _, run in group if (evaluation := _evaluation(run, split)) is not None]
            lines.append(_row(name, split, found))
        note = (
            f"- examples: questions whose values lie within task.max_length = {group[0][1].setting('task.max_length')}"
        )
        note += " tokens; the others of a split are left out, so runs with another length count others"
        notes += [note] if note not in notes else []
        lines += _published(group[0][1], notes)
    return "\n".join(["measures, percent", "", *lines, *([""] if notes else []), *notes]) + "\n"


def _row(name: str, split: str, found: Sequence[Evaluation]) -> str:
    means = [totals(evaluation.metrics) for evaluation in found]
    counts = sorted({int(mean[MEASURES[0]]["count"] or 0) for mean in means if MEASURES[0] in mean})
    cells = []
    for measure in _COLUMNS:
        values = [100 * (mean[measure]["micro"] or 0.0) for mean in means if measure in mean]
        cells.append(figure(values, 1))
    return markdown_row([name, split, "/".join(map(str, counts)) or "-", *cells])


def _published(run: Run, notes: list[str]) -> list[str]:
    """The paper's rows for the run's group and S; none for another size."""
    group, size = run.setting("algorithm.group"), run.setting("task.server_labelled")
    if run.setting("task.name") != "wikisql" or (group, size) not in TABLE:
        return []
    note = f"- published: {TITLE}" + (f"; S = {size}: {REMARKS[size]}" if size in REMARKS else "")
    notes += [note] if note not in notes else []
    if settings := changed(run, f"fedparsing/{group}_{size}"):
        notes.append(f"- {for_markdown(run.name)}: {settings}")
    for split, questions in QUESTIONS.items():
        counts = [e.of(MEASURES[0]) for e in (_evaluation(run, split),) if e is not None]
        count = sum(number for scores in counts for _, number in scores.values())
        if count not in (0, questions):
            notes.append(f"- {for_markdown(run.name)}: {count} {split} questions (paper: {questions})")
    return [
        f"| published: {NAMES[group]}, S = {size} | {split} | - | "
        + " | ".join([*(f"{figure:.1f}" for figure in figures), "-", "-"])
        + " |"
        for split, figures in zip(("test", "dev"), TABLE[(group, size)], strict=True)
    ]


def _evaluation(run: Run, split: str) -> Evaluation | None:
    """The final evaluation of a split, else among those made while training the one that chose the best model."""
    metric = run.metric()
    found = [found for found in run.all_evaluations() if found.split == split and metric and found.of(metric)]
    if final := [evaluation for evaluation in found if evaluation.label == "final"]:
        return final[-1]
    if not found or metric is None:
        return None
    return max(found, key=lambda evaluation: (totals(evaluation.metrics)[metric]["micro"] or 0.0, -evaluation.round))
