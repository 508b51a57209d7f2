"""From the `name` under `task` or `algorithm` in a config to the dataclass it stands for."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import sys
from functools import lru_cache
from typing import Any

from fedtorch.config.validate import nearest
from fedtorch.core.errors import ConfigError
from fedtorch.core.own_frames import own_place
from fedtorch.core.renamed import moved

NAMED = {"task": ("fedtorch.tasks", "TASKS", "text2sql"), "algorithm": ("fedtorch.algorithms", "ALGORITHMS", "fedavg")}
"""Section -> (module, its dict of name -> "module:Class", name taken when none is given)."""

_log = logging.getLogger(__name__)


def named_class(section: str, name: str, at: str) -> type:
    """The dataclass that `name` stands for: an entry of the section's dict, or `module:Class`."""
    module, table, _ = NAMED[section]
    base = f"{module}.base:{section.capitalize()}"
    return class_of(f"{section}.name", name, at, what=section, table=f"{module}:{table}", base=base)


def class_of(key: str, name: str, at: str, *, what: str, table: str, base: str) -> type:
    """The dataclass that the value `name` of `key` stands for: an entry of a table, or `module:Class`.

    at: where it is written, for messages. what: the word for what is named. table, base: `module:NAME` of the dict of
    name -> `module:Class`, and of the class that it must derive from; imported here.
    """
    known = attribute(table)
    if ":" not in name and name not in known:
        raise ConfigError(
            f"{key} is `{name}`{at} but there is no such {what}; {nearest(name, list(known))} "
            f"(or write `module:Class` for one of your own)"
        )
    target = known.get(name, name)
    cls = _imported(key, name, target, at) if name in known else imported(key, name, at)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(f"{key} is `{name}`{at} but `{target}` is not a dataclass")
    parent = attribute(base)
    if not issubclass(cls, parent):
        raise ConfigError(
            f"{key} is `{name}`{at} but `{target}` is no {parent.__name__}; derive it from `{parent.__module__}."
            f"{parent.__name__}`"
        )
    return cls


def imported(key: str, name: str, at: str) -> Any:
    """Import the value `module:NAME` of `key`, code from outside this package.

    Raises:
        ConfigError: it cannot be imported.
    """
    _announce(key, name)
    return _imported(key, name, name, at)


def _imported(key: str, name: str, target: str, at: str) -> Any:
    try:
        return attribute(target)
    except MemoryError:  # which is not the config's
        raise
    except Exception as error:  # whatever the module does on import is the user's to see
        raise ConfigError(
            f"{key} is `{name}`{at} but importing `{target}` failed: {type(error).__name__}: {error}{own_place(error)}"
            f"{moved(error)}"
        ) from error


def attribute(target: str) -> Any:
    """Import what `module:NAME` names."""
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@lru_cache
def _announce(key: str, name: str) -> None:
    folder = os.getcwd()
    if not {"", folder} & set(sys.path):
        sys.path.append(folder)
    _log.warning("%s: code from outside this package, `%s`, is imported and run", key, name)
