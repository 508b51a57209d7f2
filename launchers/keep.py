"""Keep one rank of a job running: it is started again when it dies, or when it has lost the others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from fedtorch.core.errors import ConfigError, Interrupted, RestartsError
from fedtorch.main import main

from .fork_server import SIGNALS, be_rank
from .job import FINAL, ended
from .pool import hold

MAX_RESTARTS = 10
PAUSE_S = 1.0
"""Between two attempts, so that one that fails at once does not use up all restarts in a moment."""
_LOOK_S = 0.05
"""Between two looks at whether the rank has ended. A signal is passed on that late where another thread took it."""


class Kept:
    """One rank, as a process of its own. Main thread only, for the signals' sake.

    1. What a restart would only repeat ends it: done, a wrong setting, a stop by a signal. Anything else, a lost rank
       above all, starts it again, and the job's ranks find each other anew: they wait `system.start_timeout` seconds.
    2. The first signal is passed on: the rank saves and ends with 75. A second one kills it.
    3. Where this process is killed the rank saves and ends, as by a signal. While it runs it holds a lock in the run
       folder.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        say: Callable[[str], None],
        rank: Callable[[list[str]], int] = main,
    ) -> None:
        """environ: which rank it is. folder: of the run. rank: what the process is, given the arguments; its code."""
        self._arguments, self._environ, self._folder, self._say = list(arguments), dict(environ), folder, say
        self._rank = rank
        self._signals: list[int] = []
        self._passed = 0
        self._pid = 0

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
        previous = {number: signal.signal(number, self._received) for number in SIGNALS}
        try:
            code = self._once(self._arguments)
            for attempt in range(max_restarts):
                if self._signals or code in (0, *FINAL):
                    break
                self._say(f"ended with {ended(code)}; started again, {attempt + 1} of {max_restarts} times")
                time.sleep(PAUSE_S)
                if self._signals:
                    break
                code = self._once(_resumed(self._arguments))
            if self._signals:
                return code and Interrupted.exit_code
            if code in (0, *FINAL):
                return code
            raise RestartsError(f"no restart is left of {max_restarts}; the last attempt ended with {ended(code)}")
        finally:
            os.close(lock)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _once(self, arguments: list[str]) -> int:
        """Fork: all is imported here already.

        Signals are held back for the rank's sake, which must not run this process's handler. Another thread of this
        one, if there is any, takes them all the same: the handler then runs before the rank's process id is known, and
        a system call in which the main thread waits is not interrupted.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._pid = pid = os.fork()
            if not pid:
                be_rank(self._rank, arguments, self._environ, death_signal=signal.SIGTERM)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._pass_on()
        while not (ended_with := os.waitpid(pid, os.WNOHANG))[0]:
            time.sleep(_LOOK_S)
        self._pid = 0
        return os.waitstatus_to_exitcode(ended_with[1])

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        self._pass_on()

    def _pass_on(self) -> None:
        """What has come since the last one that the rank was sent. A handler may interrupt it: counted, then sent."""
        while self._pid and self._passed < len(self._signals):
            self._passed += 1
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self._pid, self._signals[0] if self._passed == 1 else signal.SIGKILL)


def _resumed(arguments: Sequence[str]) -> list[str]:
    """The arguments once more: a run that was to begin anew has begun."""
    words = list(arguments)
    if "--resume" in words and words[(place := words.index("--resume") + 1)] == "never":
        words[place] = "auto"
    return words


def say(prog: str) -> Callable[[str], None]:
    """Prints what happens to a command's rank."""
    return lambda text: print(f"{prog}: {text}", file=sys.stderr, flush=True)
