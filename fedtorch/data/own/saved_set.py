"""Looks at a folder of `save_to_disk` before it is read: its own regular files, and none that lead out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.core.regular_file import check_regular, shown_path

_WRITTEN_AGAIN = "write it again with save_to_disk, and name its folder"


def check_saved(folder: Path) -> None:
    """Refuse a saved set, or a dict of them, whose descriptions name files that are not in its folder.

    Raises:
        DataError: names the file that says so, and what it names; or a file is missing, damaged, or no regular one.
    """
    splits = folder / "dataset_dict.json"
    if not splits.is_file():
        _check_set(folder, folder)
        return
    for name in _names(splits, _read(splits).get("splits")):
        _check_set(folder / name, folder)


def _check_set(folder: Path, root: Path) -> None:
    _check_within(folder, root)
    for file in (folder / "state.json", folder / "dataset_info.json"):
        if not file.exists():
            raise DataError(
                f"{folder} cannot be read as what save_to_disk wrote: it has no {file.name}; {_WRITTEN_AGAIN}"
            )
        _check_within(file, root)
        check_regular(file, "a saved set's")
    state = _read(folder / "state.json")
    files = state.get("_data_files")
    if isinstance(files, list):
        files = [entry.get("filename") if isinstance(entry, dict) else None for entry in files]
    for name in _names(folder / "state.json", files):
        _check_within(folder / name, root)
        check_regular(folder / name, "a saved set's data file")


def _read(file: Path) -> dict[str, Any]:
    check_regular(file, "a saved set's")
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{shown_path(file)} cannot be read ({type(error).__name__}); {_WRITTEN_AGAIN}") from None
    if not isinstance(found, dict):
        raise DataError(f"{shown_path(file)} holds no mapping; {_WRITTEN_AGAIN}")
    return found


def _names(file: Path, found: Any) -> list[str]:
    """Names that a description lists, each of a file or folder right beside it."""
    if not isinstance(found, list):
        raise DataError(f"{shown_path(file)} does not list what belongs to it; {_WRITTEN_AGAIN}")
    for name in found:
        if not isinstance(name, str) or Path(name).name != name or not _can_be(name):
            raise DataError(
                f"{shown_path(file)} names {shown_path(str(name))}, which is not in its folder; {_WRITTEN_AGAIN}"
            )
    return found


def _can_be(name: str) -> bool:
    """Can a file in the folder have this name? Half of a pair of surrogates may stand in JSON, and on no disk."""
    return name not in ("", "..") and not any(char in "\\\0" or "\ud800" <= char <= "\udfff" for char in name)


def _check_within(path: Path, root: Path) -> None:
    """Raises DataError: the path is a link that leads out of the folder."""
    try:
        is_within = path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a circle of links
        is_within = False
    if not is_within:
        raise DataError(f"{shown_path(path)} is a link that leads out of its folder; put the file itself there")
