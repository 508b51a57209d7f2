"""How a launcher learns that its run gets on: a rank writes a file after every round that is saved."""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

VARIABLE = "FEDTORCH_SAVED"
"""Environment variable with the file's path, which a launcher sets; without it nothing is written."""


def tell_saved(round: int) -> None:
    """Say that the state after `round` rounds is saved on all ranks. A disk that refuses is a warning."""
    if path := os.environ.get(VARIABLE):
        try:
            Path(path).write_text(f"{round}\n")
        except OSError as error:
            log.warning("could not write %s (%s): the launcher does not learn that a round is saved", path, error)


def last_saved(path: Path) -> int:
    """Number that tells the last call of `tell_saved` with this path from all others; 0: there was none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
