"""Dialog runs as rows and domains as columns: perplexity, the FedAssistant paper's below ours, and bytes exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.shown import for_markdown, markdown_row
from fedtorch.report.compared import by_settings, figure
from fedtorch.report.find_runs import NamedRun
from fedtorch.report.groups import group_name
from fedtorch.report.published.changed import changed
from fedtorch.report.published.fedassistant import DOMAINS, REMARKS, TABLE, TITLE, row_of
from fedtorch.tracking.run_folder import Run

_ROWS = {"perplexity": "", "perplexity_assistant": " _A"}
_AVERAGES = ("All", "union")
_BYTES = ("bytes_up", "bytes_down", "kv_bytes", "kv_overhead_bytes")
_PHYSICAL = ("physical_up", "physical_down")


def perplexity_markdown(runs: Sequence[NamedRun]) -> str:
    """Both tables. Runs that differ in the seed alone share a row (mean ± standard deviation).

    Raises:
        ConfigError: a run is of another task.
    """
    for _, run in runs:
        if run.setting("task.name") != "dialog":
            raise ConfigError(f"{run.folder} is a run of task.name {run.setting('task.name')}; name runs of dialog")
    groups = by_settings(runs)
    return _scores(groups) + "\n" + _traffic(groups)


def _scores(groups: Sequence[Sequence[NamedRun]]) -> str:
    domains = list(dict.fromkeys(name for group in groups for _, run in group for name in _columns(run)))
    heads = [DOMAINS.get(name, name) for name in domains] + list(_AVERAGES)
    lines = [markdown_row(["run", *heads]), "|---|" + "---:|" * len(heads)]
    notes: list[str] = []
    for group in groups:
        name, run = group_name([name for name, _ in group]), group[0][1]
        name += f" (n={len(group)})" if len(group) > 1 else ""
        found = [summary for _, each in group if (summary := _summary(each))]
        if found and (idle := [client for client in run.clients if not run.last.get(client, {}).get("steps")]):
            notes.append(
                f"- {for_markdown(name)}: All and the averages count {len(idle)} of {len(run.clients)} clients that "
                "never trained: " + for_markdown(", ".join(idle[:10]))
            )
        if not found:
            notes.append(f"- {for_markdown(name)}: not finished: {run.last_round} of {run.rounds} rounds")
        published = row_of(run.name) if set(_columns(run)) & set(DOMAINS) else None
        for key, suffix in _ROWS.items():
            ours = [summary[key] for summary in found if key in summary]
            if ours:
                lines.append(_line(f"{name}{suffix}", [[row.get(c) for row in ours] for c in (*domains, *_AVERAGES)]))
            if published:
                lines += _published_line(published, suffix, domains)
        notes += _notes(run, published, notes) if published else []
    return "\n".join(["perplexity, lower is better", "", *lines, *([""] if notes else []), *notes]) + "\n"


def _traffic(groups: Sequence[Sequence[NamedRun]]) -> str:
    """Bytes of the group's first run, all of them and those of a round; see `Meter` for what is counted."""
    heads = ("rounds", "up MB", "down MB", "keys and values MB", "their masks and headers MB", "sum MB", "MB per round")
    moved_heads = ("sent to the server MB", "sent by the server MB")
    lines = [
        "bytes exchanged by all clients, logical (each client's own copy), and what the server's rank physically sent "
        "and received (nothing in one process)",
        "",
    ]
    lines += [f"| run | {' | '.join((*heads, *moved_heads))} |", "|---|" + "---:|" * (len(heads) + 2)]
    for group in groups:
        name, run = group_name([name for name, _ in group]), group[0][1]
        rounds = run.of_kind("round")
        everything = [*rounds, *run.of_kind("end")]
        sums, moved = (
            [sum(record.get(key) or 0 for record in everything) for key in keys] for keys in (_BYTES, _PHYSICAL)
        )
        each = sum(record.get(key) or 0 for record in rounds for key in _BYTES) / len(rounds) if rounds else 0.0
        cells = [f"{amount / 1e6:.3f}" for amount in (*sums, sum(sums), each, *moved)]
        lines.append(markdown_row([name, len(rounds), *cells]))
    return "\n".join(lines) + "\n"


def _columns(run: Run) -> list[str]:
    """The domains of a run: of its result, else its clients."""
    found = _summary(run).get("perplexity", {})
    return [name for name in found if name not in _AVERAGES] or list(run.clients)


def _summary(run: Run) -> Mapping[str, Any]:
    results = run.of_kind("result")
    return results[-1].get("summary", {}) if results else {}


def _source(run: Run) -> str:
    """Value of `fedtorch data prepare dialog --source` for the run's data."""
    results = run.of_kind("result")
    record = results[-1].get("task", {}).get("data", {}) if results else {}
    return str(record.get("options", {}).get("source", "another source"))


def _line(label: str, columns: Sequence[Sequence[float | None]]) -> str:
    cells = [figure([value for value in column if value is not None], 2) for column in columns]
    return markdown_row([label, *cells])


def _published_line(row: str, suffix: str, domains: Sequence[str]) -> list[str]:
    """The paper's line for the run's own, none where the paper has none."""
    title, both, assistant = TABLE[row]
    figures = assistant if suffix else both
    if figures is None:
        return []
    known = dict(zip((*DOMAINS, "All"), figures, strict=True))
    return [_line(f"published: {title}{suffix}", [[known.get(name)] for name in (*domains, *_AVERAGES)])]


def _notes(run: Run, row: str, earlier: Sequence[str]) -> list[str]:
    notes = [f"- published: {TITLE}"]
    notes += [f"- {REMARKS[row]}"] if row in REMARKS else []
    notes = [note for note in notes if note not in earlier]
    if (source := _source(run)) != "taskmaster1":
        notes.append(f"- {for_markdown(run.name)}: data of {source} (paper: taskmaster1)")
    return notes + [
        f"- {for_markdown(run.name)}: {settings}" for settings in [changed(run, f"fedassistant/{row}")] if settings
    ]
