"""Configs and overrides that Python code gives as dictionaries, in place of files and of `key=value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import write_value

Given = str | Path | Mapping[str, Any]
"""A config: a path, the name of one that is shipped, or what its file would hold."""
Overrides = Mapping[str, Any] | Sequence[str]
"""`{"client.lr": 1e-3}`, or `["client.lr=1e-3"]` as `--set` takes it."""


def all_given(config: Given | Sequence[Given] | None) -> list[Given]:
    """One or several, to be laid over each other, as a list; none for the default job."""
    if config is None:
        return []
    given: Any = config
    found = list(given) if isinstance(given, list | tuple) else [given]
    for one in found:
        if not isinstance(one, str | Path | Mapping):
            raise ConfigError(
                f"config is a {type(one).__name__}; give a path, a name such as `smoke/fedavg`, or a dict"
            )
    return found


def assignments(overrides: Overrides) -> list[str]:
    """Each as `key=value`, the value as YAML on one line.

    Raises:
        ConfigError: a value is nothing that a config can hold.
    """
    if isinstance(overrides, str):
        return [overrides]
    if not isinstance(overrides, Mapping):
        return [str(one) for one in overrides]
    return [f"{key}={write_value(plain_data(value, str(key)))}" for key, value in overrides.items()]


def plain_data(value: Any, key: str) -> Any:
    """The value as a config file could hold it: paths as texts, tuples as lists, numpy's numbers as plain ones.

    Raises:
        ConfigError: it is something else; names the key.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, int | float):  # numpy's float64 is one, which YAML would not take
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {str(name): plain_data(item, f"{key}.{name}".lstrip(".")) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, key) for item in value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return plain_data(value.item(), key)
    raise ConfigError(
        f"{key} is a {type(value).__name__}; a config holds texts, numbers, true, false, null, lists and dicts of them"
    )
