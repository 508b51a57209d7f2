"""Keep one rank of a job running: it is started again when it dies, or when it has lost the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from fedtorch.core.errors import ConfigError, Interrupted, RestartsError

from .job import FINAL, PROGRAM, ended
from .pool import hold

MAX_RESTARTS = 10
PAUSE_S = 1.0
"""Between two attempts, so that one that fails at once does not use up all restarts in a moment."""


class Kept:
    """One rank, as a process of its own. Main thread only, for the signals' sake.

    1. What a restart would only repeat ends it: done, a wrong setting, a stop by a signal. Anything else, a lost rank
       above all, starts it again, and the job's ranks find each other anew: they wait `system.start_timeout` seconds.
    2. The first signal is passed on: the rank saves and ends with 75. A second one kills it.
    3. While it runs it holds a lock in the run folder, also when this process itself was killed.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], folder: Path, say: Callable[[str], None]):
        """arguments: of `fedtorch.main`, the first time; environ: which rank it is. folder: of the run."""
        self._arguments, self._environ, self._folder, self._say = list(arguments), dict(environ), folder, say
        self._signals: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, max_restarts: int) -> int:
        """The exit code of the rank.

        Raises:
            ConfigError: another process is this rank already.
            RestartsError: every attempt ended in a way that another one might mend.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = hold(self._folder, f".lock.rank{self._environ['RANK']}")
        if lock is None:
            raise ConfigError(f"another process is this rank of {self._folder} already; wait for it, or end it")
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        previous = {number: signal.signal(number, self._received) for number in numbers}
        try:
            code = self._once(self._arguments, lock)
            for attempt in range(max_restarts):
                if self._signals or code in (0, *FINAL):
                    break
                self._say(f"ended with {ended(code)}; started again, {attempt + 1} of {max_restarts} times")
                time.sleep(PAUSE_S)
                if self._signals:
                    break
                code = self._once(_resumed(self._arguments), lock)
            if self._signals:
                return code and Interrupted.exit_code
            if code in (0, *FINAL):
                return code
            raise RestartsError(f"no restart is left of {max_restarts}; the last attempt ended with {ended(code)}")
        finally:
            os.close(lock)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _once(self, arguments: Sequence[str], lock: int) -> int:
        words, variables = [*PROGRAM, *arguments], {**os.environ, **self._environ}
        self._process = subprocess.Popen(words, env=variables, start_new_session=True, pass_fds=(lock,))
        return self._process.wait()

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number if len(self._signals) == 1 else signal.SIGKILL)


def _resumed(arguments: Sequence[str]) -> list[str]:
    """The arguments once more: a run that was to begin anew has begun."""
    words = list(arguments)
    if "--resume" in words and words[(place := words.index("--resume") + 1)] == "never":
        words[place] = "auto"
    return words


def say(prog: str) -> Callable[[str], None]:
    """Prints what happens to a command's rank."""
    return lambda text: print(f"{prog}: {text}", file=sys.stderr, flush=True)
