"""Where a config's prepared rows are: below data/, or in a folder that was prepared before, perhaps elsewhere."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.json_file import read_bytes
from fedtorch.data.own.keys import OwnData
from fedtorch.data.own.prepare import folder_of

KEY = "task.data.prepared"

log = logging.getLogger(__name__)


def folder_for(data: OwnData, name: str, settings: Mapping[str, Any], make: Callable[[Path], object]) -> Path:
    """`data.prepared` if it is set, else a folder below data/ that is made where it is missing.

    settings: what beside `data` decides about the rows.

    Raises:
        ConfigError, DataError: see `prepared_before` and `folder_of`, and what `make` raises.
    """
    if data.prepared is not None:
        return prepared_before(Path(data.prepared), name, data, settings)
    folder = folder_of(data, name, settings)
    if not (folder / "manifest.json").is_file():
        log.info("preparing %s in %s", data.source, folder)
        make(folder)
    return folder


def prepared_before(folder: Path, name: str, data: OwnData, settings: Mapping[str, Any]) -> Path:
    """The folder, if it was made for the same task by the same keys; where the sources lay does not matter.

    Raises:
        DataError: it is no prepared folder.
        ConfigError: it was made for another task or by other keys, the first of which is named.
    """
    try:
        manifest = json.loads(read_bytes(folder / "manifest.json", "prepare it again"))
        record = manifest["record"]
        made = {**record["options"], "settings": record["settings"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{KEY} is {folder}, which `fedtorch data prepare own` has not made ({type(error).__name__}); name the "
            "folder that was given there as --out"
        ) from None
    if manifest["name"] != name:
        raise ConfigError(f"{KEY} is {folder}, which was prepared for {manifest['name']}, but task.name is {name}")
    asked = json.loads(json.dumps({**data.options(), "settings": dict(settings)}, default=str))
    for key in [key for key in {**asked, **made} if key != "source" and asked.get(key) != made.get(key)]:
        where = "the task's own keys" if key == "settings" else f"task.data.{key}"
        raise ConfigError(
            f"{KEY} is {folder}, which was prepared with {where} {made.get(key)!r}, but the config says "
            f"{asked.get(key)!r}; prepare it again, or set {KEY} to null"
        )
    return folder


def name_of_rows(data: OwnData, name: str, folder: Path) -> str:
    """Name for what belongs to the rows of these sources, whatever labels are declared, and whoever is a person.

    folder: where they are prepared, whose name it is if that was done before.
    """
    if data.prepared is not None:
        return folder.name
    return folder_of(replace(data, labels=(), person=None), name, {}).name
