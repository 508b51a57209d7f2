"""The table at the end of a run: every client's result, beside its result without the others."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import LOSS, sharers
from fedtorch.core.terminal import PlainConsole
from fedtorch.tracking.privacy_statement import promise
from fedtorch.tracking.run_folder import BESIDE, Evaluation, Pair, Run, companions, read_run
from fedtorch.tracking.trust_statement import checked

MOST_NAMED = 10
"""Clients that are named in a line."""


def show_results(
    run_dir: Path, *, metric: str | None = None, console: Console | None = None, has_commands: bool = True
) -> None:
    """Print the table of the run in `run_dir`, and the commands that show more; reads only the run's records.

    A companion run inside the folder (`local`, ...) becomes a column of its own, and the optimiser steps of all clients
    in all rounds are shown, as not all that is compared takes equally many. Scores are followed by the number of
    examples behind them.
    """
    run = read_run(run_dir)
    metric = run.metric() if metric in (None, LOSS) else metric  # the loss has a column of its own
    console = console or PlainConsole()
    title, (loss_heading, losses) = _title(run, metric), _losses(run, metric)
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("client")
    counting = _counting(run, metric)
    rounds = {} if counting is None else counting.own_rounds
    for heading in ("examples", loss_heading, "mean weight", *(["weights of round"] if rounds else [])):
        table.add_column(heading, justify="right")
    scores = _scores(run, metric)
    columns, steps = ([], []) if scores is None else ([scores], [_steps(run)])
    for folder in companions(run_dir):
        try:
            other = read_run(folder)
        except ConfigError:
            continue
        if (scores := _scores(other, metric)) is not None:
            columns.append((f"{_label(folder, other)}:\n{scores[0]}", *scores[1:]))
            steps.append(_steps(other))
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    names = [name for name in run.clients if name in run.last or any(name in pairs for _, pairs, _ in columns)]
    examples, weights = run.examples, run.mean_weights
    for name in names:
        cells = [str(examples.get(name, "-")), _number(losses.get(name)), _number(weights.get(name))]
        cells += [str(rounds.get(name, "-"))] if rounds else []
        table.add_row(name, *cells, *(_pair(pairs.get(name)) for _, pairs, _ in columns))
    table.add_section()
    averages = [average for _, _, average in columns]
    for kind, total in (("macro", ""), ("micro", str(sum(examples.get(name, 0) for name in names) or "-"))):
        cells = [f"{average[kind]:.4f} of {average['count']}" for average in averages]
        table.add_row(kind, total, "", "", *([""] if rounds else []), *cells)
    if len(columns) > 1:
        table.add_row("steps", "", "", "", *([""] if rounds else []), *map(str, steps))
    console.print(table)
    _after(run, counting, metric, console, has_commands=has_commands)


def _after(run: Run, counting: Evaluation | None, metric: str | None, console: Console, *, has_commands: bool) -> None:
    """Lines below the table."""
    if counting is not None and counting.shared:
        whose = sharers(counting.metrics, counting.shared)
        console.print(f"{counting.split}: the same rows, shared by {whose}; they count once in micro")
    for line in (*_other_scores(counting, metric), *_without_weight(run)):
        console.print(line)
    if run.gap:
        console.print(f"records: {run.gap}")
    if run.privacy:
        console.print(f"privacy: {promise(run.privacy)}")
    if run.trust:
        console.print(f"checked: {checked(run.trust)}")
    if not has_commands:
        return
    here = shlex.quote(str(run.folder))
    console.print(f"curves:  tensorboard --logdir {here}")
    console.print(f"report:  fedtorch report {here}")


def _other_scores(counting: Evaluation | None, metric: str | None) -> list[str]:
    """A line for each further score of the evaluation that counts; a few-shot run has one for each task, too many."""
    if counting is None:
        return []
    lines = []
    for name, mean in counting.averages.items():
        if name not in (metric, LOSS) and "/" not in name and mean["count"]:
            figures = f"micro {mean['micro']:.4f} macro {mean['macro']:.4f} of {mean['count']}"
            lines.append(f"{counting.split} {name} {figures}")
    return lines


def _without_weight(run: Run) -> list[str]:
    """Which clients the model has nothing of, where updates are combined."""
    if not any((weights := run.mean_weights).values()):
        return []
    never = [name for name in run.trained if name not in run.last]
    idle = [name for name in run.trained if name in run.last and not weights.get(name)]
    lines = [f"weight 0 in every round: {_named(idle)}"] if idle else []
    return lines + ([f"never drawn in {run.last_round} rounds: {_named(never)}"] if never else [])


def _named(clients: Sequence[str]) -> str:
    more = f" and {len(clients) - MOST_NAMED} more" if len(clients) > MOST_NAMED else ""
    return ", ".join(clients[:MOST_NAMED]) + more


def _scores(run: Run, metric: str | None) -> tuple[str, dict[str, Pair], Mapping[str, Any]] | None:
    """(heading, client -> score, averages) of the evaluation that counts."""
    if metric is None or (evaluation := _counting(run, metric)) is None:
        return None
    return f"{evaluation.split} {metric}", evaluation.of(metric), evaluation.average(metric)


def _counting(run: Run, metric: str | None) -> Evaluation | None:
    """The evaluation that counts, of those with this score."""
    return next((found for found in run.last_evaluations() if metric is not None and found.of(metric)), None)


def _title(run: Run, metric: str | None) -> str:
    """The run's name, how long it was, and which round's weights the scores are of."""
    counting = _counting(run, metric)
    chosen = None if counting is None else counting.weights_of
    scored = "" if chosen is None else f", scored: weights of round {chosen}"
    return f"{run.name}: {run.last_round} rounds{scored}"


def _losses(run: Run, metric: str | None) -> tuple[str, dict[str, float | None]]:
    """(heading, client -> loss): of the weights that were scored, on the same split; else of the last training."""
    counting = _counting(run, metric)
    if counting is not None and (pairs := counting.of(LOSS)):
        return f"{counting.split} loss", {name: total / count for name, (total, count) in pairs.items()}
    return "last train loss", {name: record.get("loss_mean") for name, record in run.last.items()}


def _steps(run: Run) -> int:
    return sum(record.get("steps", 0) for record in run.of_kind("client"))


def _label(folder: Path, companion: Run) -> str:
    if folder.name.startswith(BESIDE):
        return folder.name.removeprefix(BESIDE)
    return str(companion.setting("paradigm") or folder.name)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _pair(pair: Pair | None) -> str:
    return "-" if pair is None else f"{pair[0] / pair[1]:.4f} of {pair[1]}"
