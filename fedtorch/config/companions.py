"""Values of `compare`: the runs that are trained beside a run, each as changes of its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.config.layers import overlay
from fedtorch.config.validate import at, nearest
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Key, Tree, describe, merge

_ALONE: dict[str, Any] = {
    "paradigm": "local",
    "eval": {"also_received": False},
    "clients": {"max_norm_to_median": None, "max_update_norm": None},
    "async": None,
    "system": {"sum_scale": "reports"},
}
_POOLED: dict[str, Any] = {
    "paradigm": "centralized",
    "algorithm": {"name": "fedavg"},
    "partition": {"private": []},
    "eval": {"point": "received", "also_received": False},
    "client": {"optimizer_state": "keep"},  # nothing comes between two rounds, so it is one training
    "async": None,
    "system": {"sum_scale": "reports"},
}
NAMES: dict[str, Mapping[str, Any]] = {
    "start": merge(_ALONE, {"rounds": 0, "run": {"export": "none"}, "eval": {"on_start": False}}),
    "local": _ALONE,
    "centralized": _POOLED,
}
"""What a name in `compare` stands for: the model before training; every client by itself; one client with all rows."""


@dataclass(frozen=True)
class Companion:
    """A run beside another one."""

    label: str
    """what it is called in tables"""
    folder: Path
    """of its own, unless `changes` name one"""
    key: Key
    """where it is described"""
    lower: dict[str, Any]
    """the whole config that it starts from"""
    changes: dict[str, Any]
    """what was written, laid over `lower`"""


def described(compare: Any, data: Mapping[str, Any], folder: Path, tree: Tree) -> list[Companion]:
    """The runs that `compare` describes, in its order. data, folder: of the run that they stand beside.

    Raises:
        ConfigError: an unknown name, a key that a companion cannot have, or two of one name.
    """
    lower = {**data, "compare": None}
    if isinstance(compare, Mapping):
        changes = _changes(compare, ("compare",), tree)
        return [Companion(_paradigm(lower, changes), folder / "compare", ("compare",), lower, changes)]
    found = [_listed(entry, ("compare", place), lower, folder, tree) for place, entry in enumerate(compare or ())]
    labels = [one.label for one in found]
    for place, label in enumerate(labels):
        if label in labels[:place]:
            raise ConfigError(
                f"compare has two runs called {label}{at(tree, ('compare', place))}; give one of them a `run.name`"
            )
    return found


def _listed(entry: str | Mapping[str, Any], key: Key, lower: dict[str, Any], folder: Path, tree: Tree) -> Companion:
    if isinstance(entry, str):
        if entry not in NAMES:
            raise ConfigError(
                f"{'.'.join(map(str, key))} is {describe(entry)}{at(tree, key)} but should be {' or '.join(NAMES)}, or "
                f"a mapping of changes; {nearest(entry, list(NAMES))}"
            )
        return Companion(entry, folder / f"compare-{entry}", key, _preset(lower, NAMES[entry]), {})
    changes = _changes(entry, key, tree)
    run = changes.get("run")
    named = run.get("name") if isinstance(run, Mapping) else None
    label = named if isinstance(named, str) else _paradigm(lower, changes)
    return Companion(label, folder / f"compare-{label}", key, lower, changes)


def _preset(data: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    if preset["paradigm"] == "centralized":  # what is said of several clients, and of a server, has no meaning there
        kept = {key: data["clients"][key] for key in ("on_loss", "on_repeated_loss", "on_failure")}
        data = {**data, "per_client": None, "server": {}, "clients": kept}
    return overlay(Tree(dict(data)), Tree(dict(preset))).data


def _changes(entry: Mapping[str, Any], key: Key, tree: Tree) -> dict[str, Any]:
    for refused in ("compare", "base"):
        if refused in entry:
            where = (*key, refused)
            raise ConfigError(f"{'.'.join(map(str, where))} is set{at(tree, where)} but cannot be; remove it")
    if not entry:
        raise ConfigError(
            f"{'.'.join(map(str, key))} changes nothing{at(tree, key)}, so the same would be trained twice; write what "
            "is to differ, or set compare to null"
        )
    return dict(entry)


def _paradigm(lower: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    return str(changes.get("paradigm", lower["paradigm"]))


def named(run: Mapping[str, Any], companion: Companion) -> dict[str, Any]:
    """A companion's section `run`, from what it would be with its changes: its own name and folder unless they say."""
    own = companion.changes.get("run")
    own = own if isinstance(own, Mapping) else {}
    name = f"{companion.lower['run']['name']}-{companion.label}"
    return {**run, "name": own.get("name", name), "dir": own.get("dir", str(companion.folder))}
