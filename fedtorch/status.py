"""status.json: what a run is doing or how it ended, and the command that continues it."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

from fedtorch.errors import Interrupted

logger = logging.getLogger(__name__)

NAME = "status.json"


def write_status(run_dir: Path, *, code: int | None, reason: str, command: str, round: int | None = None) -> None:
    """Write `run_dir`/status.json in one step; server only. A disk that refuses is a warning, not the run's end.

    code: the exit code; None while the run is going on. reason: one line, without any client's text.
    command: the one that continues the run. round: rounds done. These three come last in the file.
    """
    record = {
        "state": _state(code),
        "round": round,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "code": code,
        "reason": reason,
        "command": command,
    }
    path = run_dir / NAME
    partial = path.with_name(f"{NAME}.partial")
    try:
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(partial, path)
    except OSError as error:
        logger.warning("could not write %s: %s", path, error)


def _state(code: int | None) -> str:
    if code is None:
        return "running"
    return {0: "done", Interrupted.exit_code: "interrupted"}.get(code, "failed")
