"""Files that only their owner may read and write."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedtorch.core.errors import CheckpointError

_TAIL = 1 << 12  # bytes in which a line that was not finished is looked for; lines are far shorter


def read_own(path: Path, what: str, advice: str) -> bytes:
    """The content of a file that only its owner may read; what, advice: for messages.

    Raises:
        CheckpointError: it is missing, or others may read it.
    """
    try:
        status = path.stat()
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}, {what}, cannot be read ({error.strerror}); {advice}") from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise CheckpointError(
            f"{path}, {what}, has mode {mode}, so others than its owner may read or change it; if nobody has, "
            f"`chmod 600 {path}`, else {advice}"
        )
    if status.st_uid != os.geteuid():
        raise CheckpointError(f"{path}, {what}, belongs to user {status.st_uid}, this process to {os.geteuid()}")
    return content


def append_own(path: Path, lines: Iterable[Mapping[str, Any]], *, shared: bool = False) -> None:
    """Add lines of JSON to a file that is made for its owner alone; they are on the disk when this returns.

    A line in which a process died before is cut off. shared: other processes may write at the same time.

    Raises:
        OSError: the disk refuses.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        if shared:
            fcntl.flock(file, fcntl.LOCK_EX)
        _drop_unfinished(file)
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        os.fsync(file.fileno())


def _drop_unfinished(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(start := max(0, size - _TAIL))
    tail = file.read()
    if tail and not tail.endswith(b"\n"):
        file.truncate(start + tail.rfind(b"\n") + 1)
