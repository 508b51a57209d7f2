"""The runs of folders that are runs, or have runs in them, as a sweep's has."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedtorch.core.errors import ConfigError
from fedtorch.tracking import records
from fedtorch.tracking.run_folder import Run, companions, is_run, read_run

PLAN = "sweep.json"
"""In a sweep's folder: the names of its runs, those that have not begun too."""

NamedRun = tuple[str, Run]
"""A run and the name it goes by."""


@dataclass
class Found:
    """Runs that a report is about."""

    runs: list[NamedRun] = field(default_factory=list)
    """each followed by its companions"""
    left_out: list[str] = field(default_factory=list)
    """what is no run, with the reason, and which records of runs are missing, one line each"""
    merged: list[str] = field(default_factory=list)
    """runs that are counted once although they were found twice, one line each"""


def find_runs(folders: Sequence[Path]) -> Found:
    """The runs in `folders`; one that is no run itself is searched, and what cannot be read in it is left out.

    Raises:
        ConfigError: a folder is not there, is a run that cannot be read, or has no run in it.
    """
    found = Found()
    for folder in folders:
        if is_run(folder) or not folder.is_dir():
            _add(found, folder)
            continue
        before = len(found.runs)
        for run in _below(folder, found.left_out):
            try:
                _add(found, run)
            except ConfigError as error:
                found.left_out.append(f"{run}: {error}")
        found.left_out += _not_begun(folder)
        if len(found.runs) == before:
            raise ConfigError(
                f"{folder} is no run ({folder / records.NAME} does not exist) and has none in it; name the folder of a "
                "run, such as runs/my_run, or of a sweep"
            )
    return found


def _add(found: Found, folder: Path) -> None:
    if folder.resolve() in {run.folder.resolve() for _, run in found.runs}:
        found.merged.append(f"{folder}: named twice, counted once")
        return
    run = read_run(folder)
    inner = [(path, read_run(path)) for path in companions(folder)]
    known = {other.folder.resolve() for _, other in found.runs}  # a companion may have been named before its run
    inner = [(path, other) for path, other in inner if path.resolve() not in known]
    found.runs.append((run.name, run))
    found.runs += [(other.name if other.config else f"{run.name}/{path.name}", other) for path, other in inner]
    found.left_out += [f"{one.folder}: {one.gap}" for one in (run, *(other for _, other in inner)) if one.gap]


def _below(folder: Path, left_out: list[str]) -> list[Path]:
    """Folders of runs at any depth, by name; folders without any are added to `left_out`, the highest ones."""
    runs: list[Path] = []
    for path in sorted(Path(entry) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)):
        if is_run(path):
            runs.append(path)
            continue
        aside: list[str] = []
        if inner := _below(path, aside):
            runs += inner
            left_out += aside
        elif not path.name.startswith(".") and path.name != "report":
            begun = (path / "status.json").is_file()
            left_out.append(f"{path}: {'a run without a record yet' if begun else 'no run'}")
    return runs


def _not_begun(folder: Path) -> list[str]:
    try:
        planned = json.loads((folder / PLAN).read_text())["runs"]
        return [f"{folder / name}: planned, has not begun" for name in planned if not (folder / name).is_dir()]
    except (OSError, ValueError, KeyError, TypeError):
        return []
