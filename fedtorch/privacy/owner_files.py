"""Files that only their owner may read and write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedtorch.core.errors import CheckpointError


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
