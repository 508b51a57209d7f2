"""Small files that are there whole or not at all, and digests of files of any size."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Hasher = TypeVar("Hasher", bound=Any)


def replace_file(path: Path, text: str) -> None:
    """Write `path` in one step; a process that dies meanwhile leaves what was there before.

    On a disk without room for a second file the text is written over the old one, where that has room for it.

    Raises:
        OSError: neither can be done; what was there before is as it was.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        data = text.encode()
        if not path.is_file() or _room(path) < len(data):
            raise
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()


def hash_file(path: Path, hasher: Hasher) -> Hasher:
    """`hasher`, of `hashlib` or xxhash, fed with the file's content a megabyte at a time."""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher


def _room(path: Path) -> int:
    """Bytes that a file can have without taking more of the disk."""
    found = path.stat()
    return max(found.st_size, 512 * found.st_blocks)
