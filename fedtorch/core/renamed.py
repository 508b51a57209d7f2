"""Old names in code from outside this package: members that it overrides, modules that it imports."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

MODULES = {
    "fedtorch.client": "fedtorch.core.client",
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


def accept_old_names(cls: type, names: Mapping[str, str]) -> None:
    """Let a subclass override members by names that they no longer have; to be called by `__init_subclass__`.

    names: old -> new. What `cls` itself defines under an old name becomes its member of the new one, with a warning.
    Otherwise it would be ignored without a word, and the class would do something else than its author wrote.

    Raises:
        TypeError: `cls` defines a member under both names.
    """
    for old, new in names.items():
        if old not in vars(cls):
            continue
        if new in vars(cls):
            raise TypeError(f"{cls.__qualname__} defines both `{old}` and `{new}`, its name now; remove `{old}`")
        setattr(cls, new, vars(cls)[old])
        warnings.warn(
            f"{cls.__qualname__} defines `{old}`, which is called `{new}` now; rename it", FutureWarning, stacklevel=3
        )


def moved(error: Exception) -> str:
    """Say what to do about an import of a module that has moved; empty where `error` is another one."""
    old = error.name if isinstance(error, ImportError) else None
    new = MODULES.get(old or "")
    if new is None:
        return ""
    return f"; `{old}` is `{new}` now, and what algorithms and tasks are made of is importable from `fedtorch`"
