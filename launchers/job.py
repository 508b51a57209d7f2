"""The ranks of one run as processes of this machine: started, watched, and started again."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch.distributed as dist

from fedtorch.comm.job.signing import VARIABLE
from fedtorch.comm.job.store import host_store
from fedtorch.core.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    Interrupted,
    NonFiniteError,
    PreflightError,
    QuorumError,
    RestartsError,
)
from fedtorch.core.saved_rounds import VARIABLE as SAVED
from fedtorch.lifecycle.run_lock import is_held, refusal

from .fork_server import Forked, ForkServer
from .pool import SAVE_S, hold
from .restarts import Restarts, pause_words

PROGRAM = (sys.executable, "-m", "fedtorch.main")
"""What every rank is."""
GRACE_S = 10.0
"""For the others to end by themselves, which tells more, before they are killed."""
_SETUP = (ConfigError.exit_code, DataError.exit_code, PreflightError.exit_code)
FINAL = (
    *_SETUP,
    NonFiniteError.exit_code,
    CheckpointError.exit_code,
    BudgetError.exit_code,
    DeviceError.exit_code,
    RestartsError.exit_code,
    Interrupted.exit_code,
)
"""What a restart would only repeat."""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Job:
    """The ranks of one run, started as often as it takes. On another thread than the main one it gets no signals.

    1. The launcher hosts the store, on a free port, so it outlives every rank.
    2. The attempt is over when the server has ended, or when a rank has ended that the others cannot do without; those
       that are still there after GRACE_S are killed. Any other rank may be started again alone.
    3. The first signal is passed on to all ranks, once: they save and end with 75. A second one kills them.
    4. Nothing that was killed leaves anything half-written: see `Checkpoints`.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        ranks: int,
        *,
        goes_on: bool = False,
        command: str = "",
        max_returns: int = 0,
        fork_server: ForkServer | None = None,
    ) -> None:
        """words: what a rank is. goes_on: may the loss of a worker not be the end? command: that starts it again.

        max_returns: how often a lost worker's rank is started again while the others go on, which let it in; for all
        ranks together, between two saved rounds.
        fork_server: forks what `words` would start; without it every rank imports all by itself.
        """
        self._words, self._folder, self._size, self._goes_on = tuple(words), folder, ranks, goes_on
        self._command, self._fork_server = command, fork_server
        self._saved = folder / ".saved"
        self._returns = Restarts(max_returns, self._saved)
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        self._signals: list[int] = []

    @property
    def stopped_by(self) -> int | None:
        """The first signal that this process got meanwhile."""
        return next(iter(self._signals), None)

    def run(self, max_restarts: int) -> int:
        """The exit code of the run; also in its status.json.

        Raises:
            ConfigError: another process holds this run folder.
            RestartsError: every attempt ended in a way that another one might mend.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = None if is_held(self._folder) else hold(self._folder)
        if lock is None:
            raise ConfigError(refusal(self._folder))
        restarts = Restarts(max_restarts, self._saved)
        is_main = threading.current_thread() is threading.main_thread()  # only there may a handler be installed
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) if is_main else ()
        previous = {number: signal.signal(number, self._received) for number in numbers}
        try:
            attempt = 0
            while True:
                code, is_final = self._attempt(attempt, lock)
                if self._signals:
                    return code and Interrupted.exit_code
                if is_final:
                    return code
                if (pause_s := restarts.spend()) is None:
                    raise RestartsError(
                        f"no restart is left of {max_restarts}; the last attempt ended with {ended(code)}"
                    )
                say(f"restart {restarts.used} of {max_restarts}{pause_words(pause_s)}")
                self._pause(pause_s)
                attempt += 1
        finally:
            self._kill()
            os.close(lock)
            for number, handler in previous.items():
                if handler is not None:  # None: one that Python has not installed and cannot put back
                    signal.signal(number, handler)

    def _attempt(self, attempt: int, lock: int) -> tuple[int, bool]:
        store = host_store("127.0.0.1", 0)
        shared = {
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(attempt + 1),  # whether it is the last one is this process's to say
            "TORCHELASTIC_RUN_ID": "local",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "FEDTORCH_COMMAND": self._command,  # for status.json
            VARIABLE: secrets.token_hex(32),
        }
        self._processes = [self._start(rank, shared, lock) for rank in range(self._size)]
        self._start_again = lambda rank: self._start(rank, shared, lock)
        for number in self._signals:  # it came between two attempts
            self._pass_on(number)
        try:
            return self._supervise(dist.PrefixStore(f"fedtorch/local/attempt{attempt}", store))
        finally:
            self._kill()

    def _supervise(self, store: dist.Store) -> tuple[int, bool]:
        """Wait for the end of an attempt; the exit code that says why it ended, and whether another one is useless."""
        ended: dict[int, int] = {}
        causes: list[int] = []
        returning: dict[int, float] = {}  # rank -> when it is started again
        kill_at = float("inf")
        while len(ended) < self._size and time.monotonic() < kill_at and len(self._signals) < 2:
            time.sleep(0.05)
            for rank in [rank for rank, due in returning.items() if time.monotonic() >= due]:
                self._processes[rank] = self._start_again(rank)
                del returning[rank], ended[rank]
            for rank, process in enumerate(self._processes):
                if rank not in ended and (code := process.poll()) is not None:
                    ended[rank] = code
                    if self._is_the_end(rank, code, store, server_lives=0 not in ended):
                        causes.append(code)
                    elif 0 not in ended and code not in (0, Interrupted.exit_code):
                        if (pause_s := self._returns.spend()) is not None:
                            returning[rank] = time.monotonic() + pause_s
            if causes or self._signals:
                returning.clear()
                kill_at = min(kill_at, time.monotonic() + (GRACE_S if causes else SAVE_S))
        if not causes:
            return Interrupted.exit_code, True
        server = ended.get(0)
        code = server if server in (0, QuorumError.exit_code, *FINAL) else causes[0]
        # a quorum that was lost with a worker is there again after a restart
        is_final = code in (0, *FINAL) or (code == QuorumError.exit_code and min(ended.values()) >= 0)
        return code, is_final

    def _is_the_end(self, rank: int, code: int, store: dist.Store, *, server_lives: bool) -> bool:
        """Is the attempt over because this rank has ended? Says so if the rank had no good reason."""
        if code in (0, Interrupted.exit_code):
            return rank == 0
        # one that ends before it has a heartbeat was never there for the others, who would wait for it
        is_over = rank == 0 or not self._goes_on or code in _SETUP or not store.check([f"heartbeat/{rank}"])
        goes_on = server_lives and not is_over
        why = f" (why: {self._output(rank)})" if rank and code > 0 else ""  # rank 0 has said it here
        say(f"rank {rank} ended with {ended(code)}{why}" + ("; the others decide whether to go on" if goes_on else ""))
        return is_over

    def _start(self, rank: int, shared: dict[str, str], lock: int) -> subprocess.Popen[bytes] | Forked:
        """In a session of its own, so that the terminal's Ctrl-C reaches only the launcher."""
        variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        variables |= {} if rank else {SAVED: str(self._saved.absolute())}
        output = None if rank == 0 else os.open(self._output(rank), _APPEND, 0o666)
        try:
            if self._fork_server is not None:
                try:
                    return self._fork_server.start(variables, output, lock)
                except OSError as error:  # of memory, or it was killed
                    say(f"cannot fork rank {rank} ({error}); ranks import all by themselves from now on")
                    self._fork_server = None
            return subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **variables},
                start_new_session=True,
                pass_fds=(lock,),
            )
        finally:
            if output is not None:
                os.close(output)

    def _output(self, rank: int) -> Path:
        """Return the file for the output of a rank other than 0."""
        return self._folder / f"output.rank{rank}.txt"

    def _pause(self, limit_s: float) -> None:
        """Wait so long, or until a signal comes."""
        give_up_at = time.monotonic() + limit_s
        while not self._signals and time.monotonic() < give_up_at:
            time.sleep(min(0.05, limit_s))

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if len(self._signals) == 1:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _kill(self) -> None:
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def ended(code: int) -> str:
    """How a process ended, from its exit status."""
    if code == -signal.SIGKILL:  # the launcher itself kills nothing that it then reports
        return "SIGKILL (exit code -9, by hand or, if `dmesg` says so, for want of memory)"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def say(text: str) -> None:
    """Print for who started the launcher."""
    print(f"launcher: {text}", file=sys.stderr, flush=True)
