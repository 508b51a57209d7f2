"""From the values in `run.trackers` to the objects that are told of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtorch.config.registry import class_of
from fedtorch.config.schema import Config
from fedtorch.config.validate import at, validate, wrong
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Tree

KEY = ("run", "trackers")
TENSORBOARD = "tensorboard"


def make_trackers(config: Config) -> list[Any]:
    """A new `RunTracker` for each; they are told nothing yet.

    Raises:
        ConfigError: there is no such tracker, or its fields are wrong.
    """
    made = []
    for place, value in enumerate(config.run.trackers):
        if _name(value) == TENSORBOARD and not config.track.tensorboard:
            continue
        tracker, problems = _find(value, place, Tree())
        if tracker is None:
            raise ConfigError("\n".join(problems))
        made.append(tracker)
    return made


def check_trackers(values: Sequence[str | dict[str, Any]], tree: Tree) -> list[str]:
    """A line for each thing that is wrong. tree: what they were read from.

    Raises:
        ConfigError: there is no such tracker, or it is none.
    """
    problems, names = [], [_name(value) for value in values]
    for place, value in enumerate(values):
        if value != TENSORBOARD:  # which has no fields, and would bring torch
            problems += _find(value, place, tree)[1]
        if names[place] in names[:place]:
            problems.append(f"run.trackers has `{names[place]}` twice{at(tree, (*KEY, place))}; leave one out")
    return problems


def _name(value: str | dict[str, Any]) -> Any:
    return value if isinstance(value, str) else value.get("name")


def _find(value: str | dict[str, Any], place: int, tree: Tree) -> tuple[Any, list[str]]:
    name, where = _name(value), (*KEY, place)
    if not isinstance(name, str):
        return None, [wrong((*where, "name"), name, "a string", tree)]
    fields = {key: item for key, item in value.items() if key != "name"} if isinstance(value, dict) else {}
    module = "fedtorch.tracking.plugin"
    table, base = f"{module}:TRACKERS", f"{module}:RunTracker"
    cls = class_of(".".join(KEY), name, at(tree, where), what="tracker", table=table, base=base)
    return validate(cls, fields, where, tree)
