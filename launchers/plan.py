"""The runs of a sweep: every config with every point of a grid and every seed, each in a folder of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedtorch.config import load as yaml_config
from fedtorch.config.find import find_all, run_name
from fedtorch.config.schema import Config
from fedtorch.core import yaml_tree
from fedtorch.core.errors import ConfigError
from fedtorch.lifecycle.more_rounds import changes_but_rounds, rounds_before

from .submit import Request

NAME = "sweep.json"


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    name: str
    """also that of its folder; says what sets it apart"""
    folder: Path
    """of the run, below that of the sweep"""
    request: Request
    """configs and settings that its command line gets"""

    @cached_property
    def config(self) -> Config:
        """Config that the request loads; read once."""
        return self.request.load()


def make_points(
    configs: Sequence[Path],
    folder: Path,
    *,
    grid: Mapping[str, Sequence[str]],
    seeds: Sequence[int] = (),
    overrides: Sequence[str] = (),
    overlays: Sequence[Path] = (),
) -> list[Point]:
    """configs x grid x seeds, in that order; the last varies fastest. A folder stands for its configs (`find_all`).

    overlays: laid over every config.

    Raises:
        ConfigError: no config, a folder without any, or two runs that would share a folder.
    """
    axes = [[f"{key}={value}" for value in values] for key, values in grid.items()]
    axes += [[f"run.seed={seed}" for seed in seeds]] if seeds else []
    files = [file for given in configs for file in find_all(given)]
    points: dict[str, Point] = {}
    for config, chosen in itertools.product(files, itertools.product(*axes)):
        name = _name((config, *overlays), chosen)
        place = folder / name
        sets = (*overrides, *chosen, f"run.name={name}", f"run.dir={place}")
        if name in points:
            raise ConfigError(f"two runs of the sweep are called {name}; give configs other names, values only once")
        points[name] = Point(name, place, Request((config, *overlays), sets))
    return list(points.values())


def parse_grid(entries: Sequence[str]) -> dict[str, list[str]]:
    """`key=a,b,c` as key -> values; commas inside brackets belong to the value: `key=[0.9,0.98],[0.9,0.99]`.

    Raises:
        ConfigError: not of that form, an empty value, or a key that comes twice or that the sweep sets itself.
    """
    grid: dict[str, list[str]] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        values = [value.strip() for value in _split(text)]
        if not equals or not key.strip() or not all(values):
            raise ConfigError(f"--grid {entry}: expected key=a,b,c with a value at every comma")
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice; name all its values in one")
        if key in ("run.name", "run.dir", "run.seed"):
            raise ConfigError(f"--grid {key}: the sweep names runs and folders itself; for seeds there is --seeds")
        grid[key] = values
    return grid


def is_done(point: Point) -> bool:
    """Has this run been finished before? One that has more rounds now has not.

    Raises:
        ConfigError: it has been finished or begun with other settings, which would be mixed up.
    """
    kept = point.folder / "config.yaml"
    config = point.config
    if not kept.is_file():
        return False
    old = yaml_tree.read(kept.read_text(), str(kept)).data
    new = yaml_config.to_dict(config, masked=True)
    if changes := changes_but_rounds(old, new):
        key, before, after = changes[0]
        raise ConfigError(
            f"{point.folder} holds a run with other settings: {key} was {before} and is now {after}"
            f"{f' and {len(changes) - 1} more' if len(changes) > 1 else ''}; take another --dir, or remove that folder"
        )
    return rounds_before(old, new) is None and read_status(point.folder).get("state") == "done"


def read_status(run_dir: Path) -> dict[str, Any]:
    """A run's status.json; empty before it has one."""
    try:
        found: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def save_plan(folder: Path, points: Sequence[Point]) -> None:
    """Add the runs to the folder's plan, from which `status` knows those that have not begun."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = dict.fromkeys([*planned(folder), *(point.name for point in points)])
    partial = folder / f"{NAME}.partial"
    partial.write_text(json.dumps({"runs": list(known)}, indent=1) + "\n")
    os.replace(partial, folder / NAME)


def planned(folder: Path) -> list[str]:
    """Names of the runs that were planned in this folder so far."""
    path = folder / NAME
    return list(json.loads(path.read_text())["runs"]) if path.is_file() else []


def _name(configs: Sequence[Path], chosen: Sequence[str]) -> str:
    whole = ",".join(["+".join(map(run_name, configs)), *(entry.removeprefix("run.") for entry in chosen)])
    name = re.sub(r"[^\w.,=+-]+", "_", whole, flags=re.ASCII)
    if name == whole and len(name) <= 120:
        return name
    return f"{name[:110]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"  # two values may look alike by now


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
