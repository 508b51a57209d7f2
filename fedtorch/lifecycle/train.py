"""One run on this rank, from its log file to the status that says how it ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

import torch

from fedtorch.config.load import companions
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, FedtorchError, Interrupted, LostRankError
from fedtorch.core.freed_memory import keep_freed
from fedtorch.core.terminal import PlainFormatter
from fedtorch.lifecycle.exit import explained, last_words, note_end, of_last_attempt
from fedtorch.lifecycle.kept_texts import LogFile
from fedtorch.lifecycle.run_lock import held
from fedtorch.lifecycle.session import Session
from fedtorch.lifecycle.signals import StopFlag
from fedtorch.lifecycle.silo_status import silo, write_silo_status
from fedtorch.lifecycle.status import read_status, write_status
from fedtorch.tracking.console import TerminalHandler

NO_TIME = "(no time)"
"""In place of date and time: two words as well."""
log = logging.getLogger("fedtorch")


def train(config: Config, *, rank: int, num_ranks: int, resume: str, command: str, stop: StopFlag) -> None:
    """Train all runs that `config` describes, as one of `num_ranks` ranks; status.json says how it ended.

    Sets torch's threads and the handlers of the logger `fedtorch`. command: the one that continues the run. The server
    holds the lock of its folders meanwhile; where another run does, it ends before it has touched a file there.

    Raises:
        FedtorchError: what ended the run, if it is something that a user can do something about.
        Exception: a defect, of a class of the user's own or of ours.
    """
    folders = [config.folder, *(other.folder for other in companions(config).values())] if rank == 0 else []
    with held(folders) as remarks:
        _train(config, rank=rank, num_ranks=num_ranks, resume=resume, command=command, stop=stop, remarks=remarks)


def _say_of_silo(config: Config, code: int | None, reason: str, command: str) -> None:
    """In a silo's own status.json, with the rounds that are there already; of another rank nothing."""
    if silo():
        done = read_status(config.folder).get("round")
        write_silo_status(config, silo(), code=code, reason=reason, command=command, round=done)


def _train(
    config: Config, *, rank: int, num_ranks: int, resume: str, command: str, stop: StopFlag, remarks: Sequence[str]
) -> None:
    """Train, in folders that are this run's alone. remarks: are logged as warnings."""
    begun, has_time = time.time(), config.tells_times
    try:
        torch.set_num_threads(config.system.threads)
        stacks = start_logging(config.folder, rank, has_times=has_time)
        for remark in remarks:
            log.warning("%s", remark)
        keep_freed(config.system.keep_freed_mb)
        stop.grace_s = config.system.shutdown_grace
        stop.last_words = partial(last_words, config, [config.folder], rank, command)
        _say_of_silo(config, None, "waits for the server", command)
        Session(rank, num_ranks, resume, command, stop, stacks).train(config)
        _say_of_silo(config, 0, "done", command)
    except KeyboardInterrupt:  # where signals do not end the process, a second one comes as this
        reason = "interrupted before it could save; what came after the last checkpoint will be repeated"
        write_status(config.folder, code=Interrupted.exit_code, reason=reason, command=command, has_time=has_time)
        raise
    except Exception as raised:
        log.debug("the run ends", exc_info=raised)  # to this rank's file; what it quotes may be a client's
        error = explained(raised)
        if error is None:
            if rank == 0:
                reason, code = f"{type(raised).__name__}; see log.rank0.txt", FedtorchError.exit_code
                write_status(config.folder, code=code, reason=reason, command=command, has_time=has_time)
            raise
        if stop.is_due and isinstance(error, LostRankError):  # it had the signal too and could not wait for this rank
            error = Interrupted(f"stopped by a signal, and not all ranks could save: {error}")
        error = of_last_attempt(error)
        note_end(config, error, rank, command, begun=begun)
        if error is raised:
            raise
        raise error from raised


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
    if root.level != logging.DEBUG:  # to set it goes through all loggers, thousands of libraries'
        root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(file)
    root.addHandler(terminal)
    assert file.stream is not None, "a file handler without `delay` opens its file at once"
    return file.stream
