"""How a rank ends: its exit code, and what status.json and the terminal say."""

from __future__ import annotations

import errno
import faulthandler
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from fedtorch.config.schema import Config
from fedtorch.core import devices
from fedtorch.core.errors import (
    CheckpointError,
    DeadlineError,
    FedtorchError,
    Interrupted,
    LostRankError,
    RestartsError,
)
from fedtorch.core.streams import print_error
from fedtorch.lifecycle.run_lock import is_held
from fedtorch.lifecycle.silo_status import is_servers, silo, write_silo_status
from fedtorch.lifecycle.status import NAME as STATUS
from fedtorch.lifecycle.status import ended_with, write_status
from fedtorch.rounds.runner import Runner

log = logging.getLogger("fedtorch")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def explained(error: Exception) -> FedtorchError | None:
    """The error that a user can do something about; None for one that only its traceback explains."""
    if isinstance(error, FedtorchError):
        return error
    if devices.is_fault(error):
        return devices.fault(error, "outside any client's training")
    if isinstance(error, MemoryError):
        return FedtorchError(f"out of memory ({error}): give the process more, or start fewer ranks")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return CheckpointError(f"the disk refuses ({error}); free some space, or set `run.dir` to another disk")
    return None


def of_last_attempt(error: FedtorchError) -> FedtorchError:
    """A lost rank in torchrun's last attempt means that its restarts are used up; any other error is itself."""
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    if not isinstance(error, DeadlineError) or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) < max(1, restarts):
        return error
    return RestartsError(f"{error}; this was the last of {restarts} restarts", ranks=error.ranks)


def last_words(config: Config, folders: Sequence[Path], rank: int, command: str, runner: Runner | None = None) -> None:
    """Say why this rank leaves although it has not saved; what it was at is in its log.

    folders: whose status.json is to say so, the server's job.
    """
    saved = None if runner is None else runner.saving.saved
    lost = "no round had begun" if saved is None else f"{saved} rounds are saved, and what came after will be repeated"
    reason = (
        f"stopped by a signal, and rank {rank} was still at work after system.shutdown_grace = "
        f"{config.system.shutdown_grace} s; {lost}"
    )
    code, has_time = Interrupted.exit_code, config.tells_times
    for folder in dict.fromkeys(folders if rank == 0 else ()):
        write_status(folder, code=code, reason=reason, command=command, round=saved, has_time=has_time)
    if silo():
        write_silo_status(config, silo(), code=code, reason=reason, command=command)
    log.error("%s", reason)
    for handler in log.handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream is not None:
            faulthandler.dump_traceback(handler.stream)


def note_end(config: Config, error: FedtorchError, rank: int, command: str, *, begun: float) -> None:
    """Say in status.json why the run ends: the server, or where that is lost and had no time to, who has seen it.

    begun: when this rank began, by time.time(); what status.json said before that was of an earlier attempt. A folder
    that is held has a server: this job's, which says it itself, or that of another run, which has refused this one's.
    """
    is_lost = isinstance(error, LostRankError) and 0 in error.ranks
    reason, has_time = str(error).splitlines()[0], config.tells_times
    if silo() and not is_servers(config.folder):
        write_silo_status(config, silo(), code=error.exit_code, reason=reason, command=command)
    elif rank == 0 or (is_lost and not _has_spoken(config.folder, begun) and not is_held(config.folder)):
        write_status(config.folder, code=error.exit_code, reason=reason, command=command, has_time=has_time)


def _has_spoken(folder: Path, begun: float) -> bool:
    """Has the server said how it ended?"""
    try:
        return (folder / STATUS).stat().st_mtime >= begun and ended_with(folder) is not None
    except OSError:
        return False


def end(error: FedtorchError, rank: int) -> int:
    """Say on the terminal why the run ends; returns the exit code."""
    if rank == 0 or not isinstance(error, Interrupted):
        print_error(f"fedtorch: {error}")
    return error.exit_code
