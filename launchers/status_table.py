"""Reports what became of a sweep's runs, read from their folders, finished or not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fedtorch.core.errors import ConfigError
from fedtorch.core.terminal import PlainConsole
from fedtorch.tracking import records
from fedtorch.tracking.run_folder import read_run

from .plan import planned, read_status
from .pool import is_locked
from .submit import in_queue, job_of


@dataclass(frozen=True)
class Row:
    """One run."""

    name: str
    """of its folder, without the sweep's"""
    state: str
    """waiting, starting, running, requeued, died, done, interrupted or failed"""
    round: int = 0
    """done"""
    rounds: int = 0
    """planned, 0 if unknown"""
    score: float | None = None
    """of all rows together, in the evaluation that counts, as in the run's own lines"""
    metric: str = ""
    """what the score is called"""
    count: int = 0
    """examples behind the score"""
    age_s: float | None = None
    """seconds since the run last wrote anything, None before"""
    reason: str = ""
    """why it died, failed or was interrupted"""


def read_rows(folder: Path) -> list[Row]:
    """The runs planned in `folder`, or the one that it is.

    Raises:
        ConfigError: it is neither.
    """
    folders = [folder / name for name in planned(folder)]
    if not folders and ((folder / "status.json").is_file() or (folder / "slurm").is_dir()):
        folders = [folder]
    if folders:
        queue = _queue() if any(job_of(run_dir) for run_dir in folders) else None
        return [read_row(run_dir, queue) for run_dir in folders]
    raise ConfigError(f"{folder} is neither a sweep's folder nor a run's; name the --dir of `launchers.sweep run`")


def read_row(run_dir: Path, queue: set[str] | None = None) -> Row:
    """One run, from status.json and metrics.jsonl. queue: the jobs that SLURM has; None: not known."""
    status = read_status(run_dir)
    held = is_locked(run_dir)
    state = str(status.get("state", "waiting"))
    if held and state != "running":
        state = "starting"
    if held is False and state in ("running", "waiting"):
        state = "died"
    reason = str(status.get("reason") or "") if state in ("failed", "interrupted") else ""
    if state == "died":
        reason = "its process ended without a word; see output.txt"
    elif held is None and queue is not None and (job := job_of(run_dir)):
        if job in queue:
            state = "requeued" if state in ("failed", "interrupted") else state
        elif state in ("running", "waiting"):
            begun = "; see its log in the folder slurm" if state == "running" else " before it began: cancelled?"
            state, reason = "died", f"job {job} ended without a word{begun}"
    written = [p.stat().st_mtime for name in ("status.json", records.NAME) if (p := run_dir / name).is_file()]
    age = max(0.0, time.time() - max(written)) if written else None
    try:
        run = read_run(run_dir)
    except ConfigError:
        return Row(run_dir.name, state, age_s=age, reason=reason)
    metric = run.metric()
    evaluation = next(iter(run.last_evaluations()), None)
    if metric is None or evaluation is None or not evaluation.of(metric):
        return Row(run_dir.name, state, run.last_round, run.rounds, age_s=age, reason=reason)
    average = evaluation.average(metric)
    return Row(
        run_dir.name,
        state,
        run.last_round,
        run.rounds,
        score=average["micro"],
        metric=f"{evaluation.split} {metric}",
        count=int(average["count"] or 0),
        age_s=age,
        reason=reason,
    )


def _queue() -> set[str] | None:
    try:
        return in_queue()
    except ConfigError:
        return None


def show(folder: Path, console: Console | None = None) -> None:
    """Print the sums, and the table, one line per run (into a file or pipe 160 letters wide)."""
    rows, console = read_rows(folder), console or PlainConsole(piped=160)
    console.print(f"{folder}: {summary(rows)}", soft_wrap=True)
    table = Table(box=box.SIMPLE)
    for heading, justify in (("run", "left"), ("state", "left"), ("round", "right"), ("score", "right")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("last sign", justify="right")
    if any(row.reason for row in rows):
        table.add_column("why", overflow="fold")
    for row in rows:
        rounds = f"{row.round}/{row.rounds}" if row.rounds else "-"
        cells = [row.name, row.state, rounds, _score(row), _age(row.age_s), row.reason]
        table.add_row(*cells[: len(table.columns)])
    console.print(table)


def summary(rows: list[Row]) -> str:
    """How many runs are in which state, such as `3 done, 1 failed`."""
    states = [row.state for row in rows]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _score(row: Row) -> str:
    return "-" if row.score is None else f"{row.metric} {row.score:.4f} of {row.count}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"
