"""Hand runs to an executor: one job, or one array of several; used by `launchers.slurm` and `launchers.sweep`."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.config import load as yaml_config
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, Interrupted
from fedtorch.lifecycle import status

from . import start_words
from .executor import make_executor
from .resources import Resources, options_of

JOB = "slurm_job"
_DEFAULTS = ("account", "constraint", "partition", "qos", "reservation")


@dataclass(frozen=True)
class Request:
    """One run to be made."""

    configs: tuple[Path, ...]
    """config files, later ones over earlier ones"""
    overrides: tuple[str, ...] = ()
    """`key=value`"""
    options: tuple[str, ...] = ()
    """further words for `fedtorch.main`, such as `--resume never`"""

    def load(self) -> Config:
        """The checked config.

        Raises:
            ConfigError: what fedtorch itself would say on every rank, before anything waits in a queue.
        """
        return yaml_config.load(self.configs or None, self.overrides)

    def arguments(self) -> tuple[str, ...]:
        """The words after `python -m fedtorch.main`."""
        words = ["--config", *map(str, self.configs)] if self.configs else []
        words += ["--set", *self.overrides] if self.overrides else []
        return (*words, *self.options)


def submit(requests: Sequence[Request], resources: Resources, folder: Path, *, name: str, at_once: int = 256) -> Any:
    """Submit one job per request, as one array if there are several; returns submitit's jobs, in the same order.

    folder: for logs and job files, readable by the user only; all machines of the job must see it.

    Raises:
        ConfigError: submitit or SLURM is missing, or sbatch refuses; with what it said.
    """
    goes_on = any(request.load().clients.on_loss == "continue" for request in requests)
    executor = make_executor(resources, folder.resolve(), name=name, goes_on=goes_on, at_once=at_once)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from .rank_process import RankProcess

    start = [*start_words("slurm"), *options_of(resources)]
    ranks = [
        RankProcess(words := request.arguments(), shlex.join([*start, *words]), secrets.token_hex(32))
        for request in requests
    ]
    try:
        with _clean_environment(resources), _ignoring_sigint():
            return executor.submit_array(ranks)
    except (FailedJobError, FailedSubmissionError, subprocess.SubprocessError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"sbatch refused the job: {lines[-1] if lines else 'without a word'}") from error


def in_queue() -> set[str]:
    """Numbers of the user's jobs that wait or run, those of arrays as `4242_1`.

    Raises:
        ConfigError: squeue cannot be asked.
    """
    words = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"squeue, which knows whether a run is under way already, cannot be run: {error}") from error
    if done.returncode:
        raise ConfigError(f"squeue, which knows whether a run is under way already, says: {done.stderr.strip()}")
    return set(done.stdout.split())


def job_of(run_dir: Path) -> str | None:
    """The number of the job that was last submitted for this run folder."""
    path = run_dir / JOB
    return path.read_text().strip() if path.is_file() else None


def note_job(run_dir: Path, number: str) -> None:
    """Remember it, for `job_of`."""
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    (run_dir / JOB).write_text(f"{number}\n")


def wait_for(job: Any, run_dir: Path, *, before: str | None) -> int:
    """Wait for a job of the local executor; returns fedtorch's exit code. Ctrl-C asks it to save and end.

    before: `status_text` from before the job; if it is still the same then, the job never came to write one: code 1.
    """
    asked = 0
    while not job.done():
        try:
            time.sleep(0.2)
            if asked:  # again and again: a rank that is still starting lets it pass
                os.kill(int(job.job_id), signal.SIGTERM)  # the process that started the ranks passes it on
        except KeyboardInterrupt:
            asked += 1
            if asked > 1:
                raise
        except ProcessLookupError:
            break
    text = status_text(run_dir)
    if text is None or text == before:
        return 1
    code = json.loads(text)["code"]
    return Interrupted.exit_code if asked and code is None else 1 if code is None else int(code)


def status_text(run_dir: Path) -> str | None:
    """A run's status.json, or None."""
    path = run_dir / status.NAME
    return path.read_text() if path.is_file() else None


@contextmanager
def _clean_environment(resources: Resources) -> Iterator[None]:
    """Without the variables of a job that this may be started from, but with what says where and who the user is."""
    from submitit.helpers import clean_env

    asked = {"partition": resources.partition, **resources.extra()}  # sbatch would take the variable
    defaults = {f"SBATCH_{key.upper()}" for key in _DEFAULTS if not asked.get(key)}
    kept = {key: value for key, value in os.environ.items() if key in defaults | {"SLURM_CONF"}}
    with clean_env():
        os.environ.update(kept)
        yield


@contextmanager
def _ignoring_sigint() -> Iterator[None]:
    """Start processes that do not die of the terminal's Ctrl-C; fedtorch's ranks answer it all the same."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
