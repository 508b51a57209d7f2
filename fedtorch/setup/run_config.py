"""The config of a run that is there, for commands that use its model from anywhere and need none of its rows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedtorch.config import load as yaml_config
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import read
from fedtorch.setup.pinned_data import is_pinned, without_data
from fedtorch.tasks.base import Task
from fedtorch.tasks.own import OwnTask

TASK = "task"
"""In a run's folder: a prepared folder without rows: what its task knows of clients and labels, its vocabulary."""
FACTS, STARTED_IN = "env.json", "started in"
"""In a run's folder: what is recorded at its start, among it the folder that relative paths of its config begin at."""


def keep_task(config: Config, task: Task) -> None:
    """Copy what the model of a run over data of one's own is built from into the run's folder; called by the server.

    task: of the run as it was built, which knows its folder. Nothing is copied, and what an earlier run has kept there
    is removed, where clients are hidden, whose sizes would stand there, or pinned, so that they may not be here.

    Raises:
        OSError: the disk refuses.
    """
    if not isinstance(task, OwnTask):
        return
    kept = config.folder / TASK
    if is_pinned(config) or config.privacy.kind != "none":
        shutil.rmtree(kept, ignore_errors=True)
        return
    source = task.folder
    if kept.resolve() == source.resolve():
        return
    partial = kept.with_name(f"{TASK}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if (source / "tokenizer").is_dir():
        shutil.copytree(source / "tokenizer", partial / "tokenizer")
    shutil.copyfile(source / "manifest.json", partial / "manifest.json")
    shutil.rmtree(kept, ignore_errors=True)
    partial.rename(kept)


def open_config(run: Path, settings: Sequence[str] = ()) -> Config:
    """The run's own config; its task reads what `keep_task` has kept, or knows clients' names alone if they are pinned.

    settings: keys that differ here. Called inside `at_home`, where relative paths mean what they did in the run.

    Raises:
        ConfigError: the folder is no run's.
    """
    path = run / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name the folder of a run, such as runs/my_run")
    config = yaml_config.load([path], settings)
    if is_pinned(config):
        return without_data(config)
    if isinstance(config.task, OwnTask) and (run / TASK / "manifest.json").is_file():
        data = replace(config.task.data, prepared=str(run / TASK))
        return replace(config, task=replace(config.task, data=data))
    return config


@contextmanager
def at_home(run: Path) -> Iterator[Path]:
    """Inside the block the working directory is the one that the run was started in; gives the run's whole path.

    Where the run is not there any more, or is a copy, it is the folder in which it lies as its config says; or else
    the run's own folder: paths never begin at wherever a command happens to be started.
    """
    run, before = run.absolute(), Path.cwd()
    os.chdir(_home(run) if run.is_dir() else before)
    try:
        yield run
    finally:
        os.chdir(before)


def whole_paths(settings: Sequence[str]) -> list[str]:
    """`KEY=VALUE` of the task with values that are relative paths to something there made whole, for `at_home`."""
    found = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        is_path = key.startswith("task.") and value and value[0] not in "{[" and Path(value).exists()
        found.append(f"{key}{equals}{Path(value).absolute()}" if is_path else setting)
    return found


def _home(run: Path) -> Path:
    try:
        recorded = Path(json.loads((run / FACTS).read_bytes())[STARTED_IN])
    except (OSError, ValueError, LookupError, TypeError):
        recorded = None
    inside = _inside(run)
    if recorded is not None and inside is not None and _is_same(recorded / inside, run):
        return recorded
    above = _above(run, inside)  # of a copied project its own files, though the first one's are there too
    return above or (recorded if recorded is not None and recorded.is_dir() else run)


def _inside(run: Path) -> Path | None:
    """`run.dir` as the run's config has it, or None."""
    try:
        told = read((run / "config.yaml").read_text(), "config.yaml").data["run"]
        return Path(told["dir"] or Path("runs") / told["name"])
    except (ConfigError, OSError, LookupError, TypeError, ValueError):
        return None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _above(run: Path, inside: Path | None) -> Path | None:
    """The folder that a relative `run.dir` begins at, by where the run lies."""
    if inside is None or inside.is_absolute() or ".." in inside.parts:
        return None
    depth = len(inside.parts)
    return Path(*run.parts[:-depth]) if run.parts[-depth:] == inside.parts else None
