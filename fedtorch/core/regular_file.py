"""A check that a path leads to a regular file, so that opening it neither blocks nor reads a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedtorch.core.errors import DataError

_SHOWN = 200  # characters of a path in a message; a longer one keeps its end
_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}


def check_regular(path: Path, what: str) -> None:
    """Refuse a path that does not lead to a regular file, without opening it; links are followed.

    Opening a FIFO waits for a writer, and a device may never end. Call it just before the file is opened.

    Args:
        what: names the file in the message, as a noun phrase: `the data file`, a config key.

    Raises:
        DataError: the path holds a NUL byte, cannot be looked up, or leads to something else; never quotes more than
            200 characters of it.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError:  # an embedded NUL, or a surrogate that no file system has
        raise DataError(
            f"{what} is {shown_path(path)}, which holds a character that no path can have (NUL); give a file's path"
        ) from None
    except OSError as error:
        raise DataError(f"{what} {shown_path(path)} cannot be read ({error.strerror}); give a file's path") from None
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise DataError(f"{what} {shown_path(path)} is {kind}, not a regular file; give the path of a regular file")


def shown_path(path: Path | str) -> str:
    """The path for a message: control characters escaped, the end alone of a very long one."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(path))
    return text if len(text) <= _SHOWN else f"…{text[-_SHOWN:]}"
