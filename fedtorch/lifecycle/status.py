"""status.json: what a run is doing or how it ended, and the command that continues it."""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtorch.config.masking import mask_assignment, set_options
from fedtorch.core.errors import BudgetError, Interrupted
from fedtorch.core.files import replace_file

logger = logging.getLogger(__name__)

NAME = "status.json"


def write_status(
    run_dir: Path,
    *,
    code: int | None,
    reason: str,
    command: str,
    round: int | None = None,
    silo: str = "",
    has_time: bool = True,
) -> None:
    """Write `run_dir`/status.json in one step; by the server, or by a silo in its own folder.

    A disk that refuses is a warning, not the run's end.

    code: the exit code; None while the run is going on. reason: one line, without any client's text.
    command: the one that continues the run. These three come last in the file. round: rounds done. silo: whose it is.
    has_time: False where nothing may tell how long rounds took.
    """
    record = {
        **({"silo": silo} if silo else {}),
        "state": _state(code),
        "round": round,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z") if has_time else None,
        "code": code,
        "reason": reason,
        "command": command,
    }
    path = run_dir / NAME
    try:
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        logger.warning("could not write %s: %s", path, error)


def read_status(run_dir: Path) -> dict[str, Any]:
    """Read `run_dir`/status.json; empty where there is no such file."""
    try:
        found = json.loads((run_dir / NAME).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def ended_with(run_dir: Path) -> int | None:
    """The code in `run_dir`/status.json; None while the run is going on, or if there is no such file."""
    code = read_status(run_dir).get("code")
    return code if isinstance(code, int) else None


def resume_command(configs: Sequence[Path] | None, overrides: Sequence[str]) -> str:
    """The command that continues this run; a launcher says its own by FEDTORCH_COMMAND."""
    if told := os.environ.get("FEDTORCH_COMMAND"):
        try:
            words = shlex.split(told)
        except ValueError:  # bash writes some letters in a way of its own
            words = told.split()
        return shlex.join(mask_assignment(word) if "=" in word else word for word in words)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    start = ["python"] if ranks == 1 else ["torchrun", f"--nproc_per_node={os.environ.get('LOCAL_WORLD_SIZE', ranks)}"]
    if (nodes := int(os.environ.get("GROUP_WORLD_SIZE", 1))) > 1:
        unknown = ["torchrun", f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=HOST:PORT", *start[1:]]
        start = agent_words(_words_of(os.getppid())) or unknown
    words = [*start, "-m", "fedtorch.main"]
    words += ["--config", *map(str, configs)] if configs else []
    words += set_options(overrides)
    return shlex.join(words)


def agent_words(words: Sequence[str]) -> list[str]:
    """torchrun with the options of this machine, from the words of the process that it is; none if it is another.

    The other machines' differ in what says who hosts the store: `--rdzv-conf is_host`, or `--node-rank`.
    """
    names = [Path(word).name for word in words]
    begin = next((place for place, name in enumerate(names) if name in ("torchrun", "torch.distributed.run")), None)
    end = next((place for place, name in enumerate(names) if name == "fedtorch.main"), 0) - 1  # before its -m
    return [] if begin is None or end < begin else ["torchrun", *words[begin + 1 : end]]


def _words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (OSError, UnicodeDecodeError):
        return []


def _state(code: int | None) -> str:
    if code is None:
        return "running"
    if code in (Interrupted.exit_code, BudgetError.exit_code):
        return "interrupted"
    return "failed" if code else "done"
