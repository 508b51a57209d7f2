"""Runs as the rows of a paper's table: one column per client, averages, and the published row under ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from fedtorch.core.errors import ConfigError
from fedtorch.core.shown import for_csv, for_markdown, markdown_row
from fedtorch.metrics.about import about, counts_hits, is_never_share
from fedtorch.metrics.intervals import of_mean, wilson
from fedtorch.report.compared import by_settings, figure
from fedtorch.report.find_runs import NamedRun
from fedtorch.report.groups import group_name
from fedtorch.report.published import Paper, find_row
from fedtorch.report.published.changed import changed
from fedtorch.tracking.run_folder import Evaluation, Pair, Run

MANY = 1000
"""From so many examples on a share's interval is narrower than 6.2 points and is not shown."""


@dataclass
class TableRow:
    """A line of the table."""

    label: str
    """of the run or of the paper's row, first in the line"""
    split: str = ""
    """that was evaluated; several are joined by `/`, and empty stands for a row that was published"""
    values: dict[str, list[float]] = field(default_factory=dict)
    """client, `macro`, `micro` -> one figure per seed"""
    counts: dict[str, int] = field(default_factory=dict)
    """client -> examples"""
    correct: list[float] = field(default_factory=list)
    """right examples, one number per seed; empty for a metric that does not count them, such as MAP"""
    examples: int = 0
    """of all clients together; rows that several clients share count once"""
    num_runs: int = 1
    """seeds behind its figures"""
    interval: tuple[float, float, str] | None = None
    """ends of the 95 % interval of `micro`, and what it is over"""
    notes: list[str] = field(default_factory=list)
    """remarks below the table"""
    is_published: bool = False
    """is it a paper's row, and no run's?"""


@dataclass
class Table:
    """A table of one metric, still without any format."""

    metric: str
    """of all its figures"""
    columns: dict[str, str]
    """client -> heading"""
    sizes: dict[str, int]
    """client -> examples behind its column unless a cell says otherwise"""
    rows: list[TableRow]
    """in the order in which they are shown"""

    @property
    def is_percent(self) -> bool:
        """Are all figures shares?"""
        return not is_never_share(self.metric) and all(
            0 <= value <= 1 for row in self.rows for values in row.values.values() for value in values
        )


def build(runs: Sequence[NamedRun], metric: str | None) -> Table:
    """The table of `runs`; those that differ in nothing but the seed share a row.

    Raises:
        ConfigError: no run has scores of `metric`.
    """
    names = [name for _, run in runs if (name := run.metric()) is not None]
    chosen = metric or next(iter(names), "exact_match")
    evaluations = [evaluation for _, run in runs for evaluation in run.last_evaluations()]
    known = {m for evaluation in evaluations for scores in evaluation.metrics.values() for m in scores}
    if known and chosen not in known:
        raise ConfigError(f"--metric is {chosen} but the runs have {', '.join(sorted(known))}")
    papers = [match[0] for _, run in runs if (match := find_row(run, chosen)) is not None]
    columns = dict(papers[0].clients) if papers else {}
    sizes = _sizes(papers[0]) if papers else {}
    rows: list[TableRow] = []
    for group in by_settings(runs):
        rows += _rows(group, chosen)
    rows = [row for i, row in enumerate(rows) if not row.is_published or row not in rows[:i]]
    for row in rows:
        for client, count in row.counts.items():
            columns.setdefault(client, client)
            sizes.setdefault(client, count)
    return Table(chosen, columns, sizes, rows)


def markdown(table: Table) -> str:
    """The table for people: figures in percent with two decimals, examples in the headings, remarks below."""
    scale = 100 if table.is_percent else 1
    sizes = {client: f" ({table.sizes[client]})" if client in table.sizes else "" for client in table.columns}
    heads = [f"{heading}{sizes[client]}" for client, heading in table.columns.items()]
    header = ["run", "split", *heads, "Macro", "Micro", "correct" if counts_hits(table.metric) else "examples"]
    lines = [f"{table.metric}{', percent' if table.is_percent else ''} (examples in brackets)", ""]
    lines += [markdown_row(header), "|---|---|" + "---:|" * (len(header) - 2)]
    for row in table.rows:
        cells = []
        for client in table.columns:
            count = row.counts.get(client)
            suffix = f" of {count}" if count not in (None, table.sizes.get(client)) else ""
            cells.append(_scaled(row.values.get(client, []), scale) + suffix)
        cells += [_scaled(row.values.get(kind, []), scale) for kind in ("macro", "micro")]
        examples = str(row.examples or "-")
        cells.append(f"{fmean(row.correct):.6g} of {examples}" if row.correct else examples)
        lines.append(markdown_row([row.label, row.split or "-", *cells]))
    notes = [f"- {for_markdown(row.label)}: {for_markdown(note)}" for row in table.rows for note in _notes(row, scale)]
    notes += [f"- {table.metric}: {told}" for told in [about(table.metric)] if told]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def as_csv(table: Table) -> str:
    """The table for programs: per client the mean, the standard deviation over seeds, and the number of examples."""
    scale = 100 if table.is_percent else 1
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [*table.columns, "macro", "micro"]
    head = [f"{key}{part}" for key in keys for part in ("", "_std", *(["_examples"] if key in table.columns else []))]
    names = ["run", "split", "metric", "runs", *head, "correct", "examples", "notes"]
    writer.writerow([for_csv(name) for name in names])
    for row in table.rows:
        cells: list[object] = []
        for key in keys:
            values = [scale * value for value in row.values.get(key, [])]
            cells += [f"{fmean(values):.4f}" if values else "", f"{stdev(values):.4f}" if len(values) > 1 else ""]
            cells += [row.counts.get(key, "")] if key in table.columns else []
        correct = f"{fmean(row.correct):.6g}" if row.correct else ""
        examples = row.examples or ""
        line = [
            row.label,
            row.split,
            table.metric,
            row.num_runs,
            *cells,
            correct,
            examples,
            "; ".join(_notes(row, scale)),
        ]
        writer.writerow([for_csv(cell) for cell in line])
    return text.getvalue()


def _notes(row: TableRow, scale: int) -> list[str]:
    """Notes below the table about a row."""
    if row.interval is None:
        return row.notes
    low, high = (f"{scale * end:.{1 if scale == 100 else 4}f}" for end in row.interval[:2])
    return [*row.notes, f"95 % interval of Micro: {low} to {high} ({row.interval[2]})"]


def _rows(group: Sequence[NamedRun], metric: str) -> list[TableRow]:
    name, run = group_name([name for name, _ in group]), group[0][1]
    match = find_row(run, metric)
    remarks = [note for member in group for note in _remarks(*member, is_alone=len(group) == 1)]
    counting = [evaluation for _, member in group for evaluation in _counting(member, metric)]
    labels = list(dict.fromkeys(evaluation.label for evaluation in counting))
    rows = []
    for label in labels:
        members = [evaluation for evaluation in counting if evaluation.label == label]
        shown = name if len(labels) == 1 else f"{name} [{label}]"
        rows.append(_row(shown, members, metric))
    if not rows:
        rows = [TableRow(name)]
        remarks.append("not evaluated yet" if not run.is_finished else f"has no {metric}")
    rows[0].notes += remarks
    rows[0].label += "" if len(group) == 1 else f" (n={len(group)})"
    rows[0].num_runs = len(group)
    if match is not None:
        paper, published, config = match
        rows[0].notes += _differences(paper, rows[0], changed(run, config))
        rows.append(
            TableRow(
                f"published: {published.title}",
                "test",
                {
                    **{c: [p / 100] for c, p in zip(paper.clients, published.percent, strict=True)},
                    "macro": [published.macro / 100],
                    "micro": [] if published.micro is None else [published.micro / 100],
                },
                _sizes(paper),
                [] if published.correct is None or not counts_hits(metric) else [published.correct],
                sum(_sizes(paper).values()),
                notes=[f"{paper.title}; {paper.remark}"],
                is_published=True,
            )
        )
    return rows


def _counting(run: Run, metric: str) -> list[Evaluation]:
    """The evaluation that counts, and those of other models on the same split."""
    found = [evaluation for evaluation in run.last_evaluations() if evaluation.of(metric)]
    return [e for i, e in enumerate(found) if i == 0 or (e.split == found[0].split and e.label != "training")]


def _row(label: str, members: Sequence[Evaluation], metric: str) -> TableRow:
    row = TableRow(label, "/".join(dict.fromkeys(member.split for member in members)), num_runs=len(members))
    for evaluation in members:
        pairs: Mapping[str, Pair] = evaluation.of(metric)
        for client, (total, count) in pairs.items():
            row.values.setdefault(client, []).append(total / count)
            row.counts[client] = count
        average = evaluation.average(metric)
        for kind in ("macro", "micro"):
            row.values.setdefault(kind, []).append(average[kind] or 0.0)
        row.examples = average["count"]
        if counts_hits(metric):
            row.correct.append((average["micro"] or 0.0) * average["count"])
    row.interval = _interval(row)
    return row


def _interval(row: TableRow) -> tuple[float, float, str] | None:
    """(low, high, of what): of the micro average over seeds, or of the share of one run's rows where these are few."""
    found, examples = row.values["micro"], row.examples
    if (ends := of_mean(found)) is not None:
        if all(0 <= value <= 1 for value in found):  # so is their mean
            ends = max(0.0, ends[0]), min(1.0, ends[1])
        return *ends, f"mean over {len(found)} seeds, by Student's t"
    if row.correct and 0 < examples < MANY:
        return *wilson(min(row.correct[0], examples), examples), f"{examples} examples of {row.split}, by Wilson"
    return None


def _remarks(name: str, run: Run, *, is_alone: bool) -> list[str]:
    who = "" if is_alone else f"seed {run.setting('run.seed')}: "
    notes = []
    if not run.is_finished:
        notes.append(f"{who}not finished: {run.last_round} of {run.rounds} rounds")
    failed: dict[str, int] = {}
    for record in run.of_kind("client"):
        if record["status"] != "ok":
            failed[record["client"]] = failed.get(record["client"], 0) + 1
    if failed:
        notes.append(who + "failed rounds: " + ", ".join(f"{client} {n}" for client, n in failed.items()))
    return notes


def _sizes(paper: Paper) -> dict[str, int]:
    return dict(zip(paper.clients, paper.sizes, strict=False))  # empty if the paper does not say


def _differences(paper: Paper, row: TableRow, settings: str) -> list[str]:
    notes = [settings] if settings else []
    if row.split and row.split != "test":
        notes.append(f"evaluated on {row.split}, the published row on test")
    sizes = _sizes(paper)
    others = [f"{c} {n} ({sizes[c]})" for c, n in row.counts.items() if c in sizes and n != sizes[c]]
    if others:
        notes.append(f"other numbers of examples than the paper's: {', '.join(others)}")
    return notes


def _scaled(values: Sequence[float], scale: int) -> str:
    return figure([scale * value for value in values], 2)
