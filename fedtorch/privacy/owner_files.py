"""Files that only their owner may read and write."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from fedtorch.core.errors import CheckpointError

_TAIL = 1 << 12  # bytes that are looked through at a time for the end of the last whole line

log = logging.getLogger(__name__)


def read_own(path: Path, what: str, advice: str) -> bytes:
    """The content of a file that only its owner may read; what, advice: for messages.

    Raises:
        CheckpointError: it is missing, no regular file, or others may read it.
    """
    try:
        status = path.stat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None  # a FIFO would wait for a writer
    except OSError as error:
        raise CheckpointError(f"{path}, {what}, cannot be read ({error.strerror}); {advice}") from error
    if content is None:
        raise CheckpointError(f"{path}, {what}, is no regular file; {advice}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise CheckpointError(
            f"{path}, {what}, has mode {mode}, so others than its owner may read or change it; if nobody has, "
            f"`chmod 600 {path}`, else {advice}"
        )
    if status.st_uid != os.geteuid():
        raise CheckpointError(f"{path}, {what}, belongs to user {status.st_uid}, this process to {os.geteuid()}")
    return content


def write_own(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, all of it or none; it is on the disk when this returns.

    Raises:
        OSError: the disk refuses.
    """
    partial = path.with_name(f"{path.name}.partial")
    with suppress(OSError):
        partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def append_own(path: Path, lines: Iterable[Mapping[str, Any]], *, shared: bool = False) -> None:
    """Add lines of JSON to a file that is made for its owner alone; they are on the disk when this returns.

    All of them, or (where this raises) none: what a full disk took of them is cut off again. A line in which a process
    died before is cut off too, as nothing that waits for this function has happened after it. shared: other processes
    may write at the same time.

    Raises:
        OSError: the disk refuses, or takes less than all.
    """
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        if shared:
            fcntl.flock(file, fcntl.LOCK_EX)
        end = _drop_unfinished(file, path)
        try:
            _write_whole(file, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            os.fsync(file.fileno())
            if is_new:  # without its name in a folder, and that of the folder, the file is lost with the power
                sync_folder(path.parent)
                sync_folder(path.parent.resolve().parent)
        except OSError:
            with suppress(OSError):
                file.truncate(end)
                os.fsync(file.fileno())
            raise


def whole_lines(content: bytes) -> list[bytes]:
    """The lines of a file that `append_own` writes, without one at its end in which a process died."""
    return [line for line in content.split(b"\n")[:-1] if line]


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can say so."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync a folder
            raise
    finally:
        os.close(handle)


def _write_whole(file: BinaryIO, data: bytes) -> None:
    """Without a buffer a full disk takes a part and says how much."""
    rest = memoryview(data)
    while rest:
        taken = file.write(rest)
        if not taken:
            raise OSError(errno.ENOSPC, f"only {len(data) - len(rest)} of {len(data)} bytes could be written")
        rest = rest[taken:]


def _drop_unfinished(file: BinaryIO, path: Path) -> int:
    """Cut off what follows the last line's end; the size that is left."""
    size = start = file.seek(0, os.SEEK_END)
    kept = 0
    while start and not kept:
        stop, start = start, max(0, start - _TAIL)
        file.seek(start)
        place = file.read(stop - start).rfind(b"\n")
        kept = start + place + 1 if place >= 0 else 0
    if kept < size:
        file.truncate(kept)
        log.warning(
            "the last %d bytes of %s are no whole line: a process died while it wrote them, and before what they are "
            "about; they are cut off",
            size - kept,
            path,
        )
    return kept
