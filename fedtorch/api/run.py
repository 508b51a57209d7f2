"""`fedtorch.run`: what `fedtorch run` and `fedtorch local` do, from Python."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from fedtorch.api.guest import alone
from fedtorch.api.ranks import run_on_ranks
from fedtorch.api.result import RunResult
from fedtorch.config.load import load
from fedtorch.config.python_configs import Given, Overrides, all_given, assignments
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, Interrupted, PreflightError
from fedtorch.core.job_environment import check_job_environment
from fedtorch.lifecycle.signals import StopFlag
from fedtorch.lifecycle.status import resume_command
from fedtorch.lifecycle.train import train


def run(
    config: Given | Sequence[Given] | None = None,
    overrides: Overrides = (),
    ranks: int = 1,
    *,
    resume: str = "auto",
) -> RunResult:
    """Train a config and return what came out; the same run, bit for bit, as the commands make.

    Args:
        config: as `--config` takes it: a file, the name of a shipped config, or a list of them that are laid over each
            other; or a dict with what a file would hold. None: the default job.
        overrides: keys that differ, `{"client.lr": 1e-3}`, or texts as `--set` takes them.
        ranks: 1 trains in this process, as `fedtorch run` does. More start so many processes on this machine, one of
            them the server, as `fedtorch local` does; their results are the same.
        resume: as `--resume`: `auto` goes on after the last checkpoint of the run folder, `never` begins anew, `force`
            goes on though the config differs, and a path begins from that checkpoint. Where ranks are started again
            when one of them dies, `never` and a path are for one attempt.

    The first Ctrl-C (or SIGTERM) lets the run save itself; the second ends it at once. A run that was interrupted goes
    on when it is called again. On a thread other than the main one no signal reaches it. Signal handlers, logging, and
    torch's threads, seed and device are put back afterwards. Modules that were imported stay, so an algorithm of your
    own that was changed meanwhile must be reloaded, or trained with `ranks=2`.

    Raises:
        ConfigError: a key, a value or an argument is wrong; every line names one.
        DataError: the data are missing or malformed; names file and line.
        PreflightError: another run is under way in this process, or it is a rank of a job itself.
        FedtorchError: any other reason why the run ended; `exit_code` is the command's.
        KeyboardInterrupt: Ctrl-C; the message says what is saved.
        Interrupted: another signal asked the run to stop.
    """
    given, settings = all_given(config), assignments(overrides)
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ConfigError(f"ranks is {ranks!r}; give the number of processes, at least 1")
    loaded = load(given or None, settings)
    _check_alone()
    if ranks == 1:
        _run_here(loaded, resume, _command(given, settings, loaded))
    else:
        run_on_ranks(given, settings, loaded, ranks, resume)
    return RunResult.open(loaded.folder)


def _check_alone() -> None:
    rank, num_ranks = check_job_environment(os.environ)
    if num_ranks > 1:
        raise PreflightError(
            f"fedtorch.run is called in rank {rank} of a job of {num_ranks} (WORLD_SIZE), each of which would train "
            f"alone; start the script without torchrun, and give ranks={num_ranks}"
        )


def _command(given: Sequence[Given], settings: Sequence[str], config: Config) -> str:
    """Command that continues the run from a shell; of a dict the run folder has the only file."""
    paths = [Path(one) for one in given if isinstance(one, str | Path)]
    if len(paths) < len(given):
        paths, settings = [config.folder / "config.yaml"], ()
    return resume_command(paths, settings)


def _run_here(config: Config, resume: str, command: str) -> None:
    stop = StopFlag()
    try:
        with alone("fedtorch.run"), stop.listening_as_guest():
            train(config, rank=0, num_ranks=1, resume=resume, command=command, stop=stop)
    except Interrupted as error:
        if stop.signal == signal.SIGINT:
            raise KeyboardInterrupt(f"{config.folder}: {error}; call it again to go on") from error
        raise
