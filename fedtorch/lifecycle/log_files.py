"""Where log lines go: one file per rank in the run folder, and the terminal."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import IO

from fedtorch.core.errors import CheckpointError
from fedtorch.core.terminal import PlainFormatter
from fedtorch.lifecycle.kept_texts import LogFile
from fedtorch.tracking.console import TerminalHandler

NO_TIME = "(no time)"
"""In place of date and time: two words as well."""


def start_logging(folder: Path, rank: int, *, has_times: bool = True) -> IO[str]:
    """Open this rank's file, which is returned; the terminal gets warnings, and all from rank 0 but debug lines.

    has_times: False where nothing may tell how long a round took; lines then have `(no time)` in its place.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        file = LogFile(folder / f"log.rank{rank}.txt")
    except OSError as error:
        raise CheckpointError(f"the run folder {folder} cannot be written ({error}); set `run.dir`") from error
    file.setFormatter(PlainFormatter(f"{'%(asctime)s' if has_times else NO_TIME} %(levelname)s %(name)s: %(message)s"))
    terminal = TerminalHandler()  # knows about the progress bar
    terminal.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    terminal.setFormatter(PlainFormatter("%(levelname)s %(message)s" if rank == 0 else f"rank {rank}: %(message)s"))
    root = logging.getLogger("fedtorch")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(file)
    root.addHandler(terminal)
    assert file.stream is not None, "a file handler without `delay` opens its file at once"
    return file.stream
