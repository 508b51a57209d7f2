"""Locks that an interrupted build of a torch or DeepSpeed extension has left: whoever needs it next waits for ever."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_DEEP = ("*/lock", "*/*/lock")  # FOLDER/NAME/lock, and below torch's own folder FOLDER/py311_cpu/NAME/lock


def extensions_folder() -> Path:
    """Where torch builds extensions; as `torch.utils.cpp_extension`, whose import takes a second (torch 2.13)."""
    if told := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def stale_locks(folder: Path) -> list[Path]:
    """Locks below `folder` that no process of this machine has open, as a builder has (`torch.utils.file_baton`).

    Empty where this cannot be known: another user's lock, or no /proc.
    """
    try:
        locks = {_identity(path): path for pattern in _DEEP for path in folder.glob(pattern)}
        mine = {key: path for key, path in locks.items() if os.getuid() in (0, path.stat().st_uid)}
        if not mine or not Path("/proc/self/fd").is_dir():
            return []
        held = set(_open_files())
    except OSError:
        return []
    return sorted(path for key, path in mine.items() if key not in held)


def warn_of_stale_locks() -> None:
    """Name each lock and what to do; DeepSpeed itself would say nothing."""
    for lock in stale_locks(extensions_folder()):
        log.warning(
            "%s was left by a build that no process of this machine is at; whatever needs that extension hangs without "
            "a word. Unless another machine is building it, remove the folder: rm -r %s",
            lock,
            lock.parent,
        )


def _open_files() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            names = os.listdir(folder)
        except OSError:  # another user's, or gone
            continue
        for name in names:
            try:
                yield _identity(folder / name)
            except OSError:
                continue


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
