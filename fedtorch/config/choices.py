"""The lower of two layers without what the upper one replaces: another choice takes all that belonged to the former."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from fedtorch.config.registry import NAMED, named_class
from fedtorch.config.schema import AsyncConfig, Config
from fedtorch.config.validate import dataclasses_in, hints_of
from fedtorch.core.choices import Choice, Named, OneOf
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Key, Tree

SET = "--set "
"""How the mark of a value begins that the command line gave."""


def without_replaced(lower: Tree, upper: Tree) -> dict[str, Any]:
    """The data of `lower` as `upper` is to be merged over them.

    Where `upper` chooses otherwise (`task.model: {path: m}` over `{random: bert, ...}`), what belongs to the former
    choice goes; what the same command line sets stays, in whatever order it says so.
    """
    found = dict(lower.data)
    for section, below in upper.data.items():
        if isinstance(below, Mapping) and isinstance(found.get(section), Mapping):
            kind = _class(section, found[section], below)
            found[section] = _left(kind, found[section], below, (section,), _from_command(lower, upper))
    return found


def _class(section: str, lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Any:
    """The type of a section; None where it is not known, which is said when the config is built."""
    if section == "async":
        return AsyncConfig
    if section not in NAMED:
        return hints_of(Config).get(section)
    if not any(isinstance(value, Mapping) and key in lower for key, value in upper.items()):
        return None  # nothing inside meets anything; so that a name which is replaced later need not exist
    name = upper.get("name", lower.get("name", NAMED[section][2]))
    try:
        return named_class(section, name, "") if isinstance(name, str) else None
    except ConfigError:
        return None


def _from_command(lower: Tree, upper: Tree) -> set[Key]:
    """The keys of `lower` that the command line gave, where `upper` is of the command line too."""
    if not any(mark.startswith(SET) for mark in upper.marks.values()):
        return set()
    return {key for key, mark in lower.marks.items() if mark.startswith(SET)}


def _left(kind: Any, lower: Any, upper: Any, place: Key, stays: set[Key]) -> Any:
    if not isinstance(upper, Mapping):
        return lower
    if (choice := _choice(kind)) is not None:
        lower = choice.mapping(lower)
        if isinstance(lower, Mapping):
            gone = choice.replaced(lower, upper)
            gone -= {key for key in gone if (*place, key) in stays and key not in choice.keys}
            lower = {key: value for key, value in lower.items() if key not in gone}
    if not isinstance(lower, Mapping):
        return lower
    fields = {name: hint for section in dataclasses_in(kind) for name, hint in hints_of(section).items()}
    return {
        key: _left(fields.get(key), value, upper[key], (*place, key), stays) if key in upper else value
        for key, value in lower.items()
    }


def _choice(kind: Any) -> Choice | None:
    """Read how the keys of an annotation, or of the class in it, exclude each other."""
    for found in getattr(kind, "__metadata__", ()):
        if isinstance(found, OneOf | Named):
            return found
    for member in typing.get_args(kind):
        if (inside := _choice(member)) is not None:
            return inside
    return getattr(kind, "one_of", None) if isinstance(kind, type) else None
