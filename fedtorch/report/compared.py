"""Common part of the reports: which runs to show, which of them are one row, figures over seeds, files written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from fedtorch.report.find_runs import NamedRun, find_runs
from fedtorch.tracking.run_folder import Run

_IGNORED = ("run", "track", "system", "checkpoint", "compare")


def read_all(folders: Sequence[Path]) -> list[NamedRun]:
    """The runs in the folders, each followed by its companions, with the names they go by; says what is left out.

    Raises:
        ConfigError: a folder has no run.
    """
    found = find_runs(folders)
    say_left_out(found.left_out)
    return found.runs


def say_left_out(lines: Sequence[str]) -> None:
    """Name what is no run, on stderr."""
    for line in lines:
        print(f"left out: {line}", file=sys.stderr)


def same_settings(run: Run) -> str:
    """Equal for runs that differ only in seed, name and folder; a run without config is alone."""
    if not run.config:
        return str(run.folder.resolve())
    return json.dumps({k: v for k, v in run.config.items() if k not in _IGNORED}, sort_keys=True, default=str)


def by_settings(runs: Iterable[NamedRun]) -> list[list[NamedRun]]:
    """The runs in groups of those that differ in nothing but the seed, each group a row of a table."""
    groups: dict[str, list[NamedRun]] = {}
    for name, run in runs:
        groups.setdefault(same_settings(run), []).append((name, run))
    return list(groups.values())


def figure(values: Sequence[float], digits: int) -> str:
    """Mean over seeds ± standard deviation; the value alone if there is one, `-` if there is none."""
    if not values:
        return "-"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def show_page(text: str, path: Path) -> Path:
    """Print a page and write it to `path`, which is returned."""
    sys.stdout.write(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def say_written(paths: Sequence[Path]) -> None:
    """Name the files that were written, on stderr."""
    print("\n".join(["", *(f"wrote {path}" for path in paths)]), file=sys.stderr)
