"""Old names in code from outside this package, for errors: members that it overrides, modules that it imports."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature

MODULES = {
    "fedtorch.compression": "fedtorch.compression.compressors",
    "fedtorch.config": "fedtorch.config.schema",
    "fedtorch.errors": "fedtorch.core.errors",
    "fedtorch.job": "fedtorch.train.job",
    "fedtorch.models.scorer": "fedtorch.models.networks.scoring",
    "fedtorch.payload": "fedtorch.compression.payload",
    "fedtorch.sampling": "fedtorch.core.sampling",
    "fedtorch.seeds": "fedtorch.core.seeds",
    "fedtorch.selection": "fedtorch.compression.topk",
    "fedtorch.server": "fedtorch.core.server",
    "fedtorch.update": "fedtorch.core.update",
    "fedtorch.weights": "fedtorch.core.weights",
    "fedtorch.yaml_config": "fedtorch.config.load",
}
"""Modules of version 0.1 that an algorithm or task may have imported -> where they are now."""


def refuse_old_names(cls: type, names: Mapping[str, str]) -> None:
    """Refuse members by names that they no longer have; to be called by `__init_subclass__`.

    Otherwise one would be ignored without a word, and the class would do something else than its author wrote.

    names: old -> new.

    Raises:
        TypeError: `cls` itself defines one of them.
    """
    for old in names:
        if old in vars(cls):
            raise TypeError(
                f"{cls.__qualname__} defines `{old}`, which is `{names[old]}` now; see docs/adding-an-algorithm.md"
            )


def refuse_old_arguments(cls: type, name: str, arguments: str) -> None:
    """Refuse a function that takes other arguments than it is called with now, as `refuse_old_names` does names.

    arguments: of today, without `self`.

    Raises:
        TypeError: `cls` itself defines the function so.
    """
    if name not in vars(cls):
        return
    taken = signature(vars(cls)[name])
    try:
        taken.bind(None, *arguments.split(", "))
    except TypeError:
        raise TypeError(
            f"{cls.__qualname__} defines `{name}{taken}`, which is called with ({arguments}) now; see "
            "docs/adding-an-algorithm.md"
        ) from None


def moved(error: Exception) -> str:
    """Say what to do about an import of a module that has moved; empty where `error` is another one."""
    old = error.name if isinstance(error, ImportError) else None
    new = MODULES.get(old or "")
    if new is None:
        return ""
    return f"; `{old}` is `{new}` now, and what algorithms and tasks are made of is importable from `fedtorch`"
