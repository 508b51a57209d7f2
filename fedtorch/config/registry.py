"""From the `name` under `task` or `algorithm` in a config to the dataclass it stands for."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import sys
from functools import lru_cache

from fedtorch.config.validate import nearest
from fedtorch.core.errors import ConfigError
from fedtorch.core.renamed import moved

NAMED = {"task": ("fedtorch.tasks", "TASKS", "text2sql"), "algorithm": ("fedtorch.algorithms", "ALGORITHMS", "fedavg")}
"""Section -> (module, its dict of name -> "module:Class", name taken when none is given)."""

_log = logging.getLogger(__name__)


def named_class(section: str, name: str, at: str) -> type:
    """The dataclass that `name` stands for: an entry of the section's dict, or `module:Class`."""
    module_name, table_name, _ = NAMED[section]
    table = getattr(importlib.import_module(module_name), table_name)
    if ":" not in name and name not in table:
        raise ConfigError(
            f"{section}.name is `{name}`{at} but there is no such {section}; {nearest(name, list(table))} "
            f"(or write `module:Class` for one of your own)"
        )
    target = table.get(name, name)
    module, _, cls_name = target.partition(":")
    if name not in table:
        _announce(section, name)
    try:
        cls = importlib.import_module(module)
        for part in cls_name.split("."):
            cls = getattr(cls, part)
    except MemoryError:  # which is not the config's
        raise
    except Exception as error:  # whatever the module does on import is the user's to see
        raise ConfigError(
            f"{section}.name is `{name}`{at} but importing `{target}` failed: "
            f"{type(error).__name__}: {error}{moved(error)}"
        ) from error
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(f"{section}.name is `{name}`{at} but `{target}` is not a dataclass")
    base = getattr(importlib.import_module(f"{module_name}.base"), section.capitalize())
    if not issubclass(cls, base):
        raise ConfigError(
            f"{section}.name is `{name}`{at} but `{target}` is no {base.__name__}; derive it from `{base.__module__}."
            f"{base.__name__}`"
        )
    return cls


@lru_cache
def _announce(section: str, name: str) -> None:
    folder = os.getcwd()
    if not {"", folder} & set(sys.path):
        sys.path.append(folder)
    _log.warning("%s.name: code from outside this package, `%s`, is imported and run", section, name)
