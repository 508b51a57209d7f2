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
from fedtorch.core.saved_rounds import VARIABLE
from fedtorch.main import main

from .fork_server import SIGNALS, be_rank
from .job import FINAL, ended
from .pool import hold
from .restarts import Restarts, pause_words

MAX_RESTARTS = 10
_LOOK_S = 0.05
"""Between two looks at whether the rank has ended. A signal is passed on that late where another thread took it."""


class Kept:
    """One rank, as a process of its own. Main thread only, for the signals' sake.

    1. What a restart would only repeat ends it: done, a wrong setting, a stop by a signal. Anything else, a lost rank
       above all, starts it again, and the job's ranks find each other anew: they wait `system.start_timeout` seconds.
       Restarts are counted since the last round that was saved (`Restarts`).
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
        self._saved = folder / f".saved.rank{environ['RANK']}"
        self._environ[VARIABLE] = str(self._saved.absolute())
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
        restarts = Restarts(max_restarts, self._saved)
        previous = {number: signal.signal(number, self._received) for number in SIGNALS}
        try:
            code, arguments = self._once(self._arguments), self._arguments
            while not self._signals and code not in (0, *FINAL):
                if (pause_s := restarts.spend()) is None:
                    raise RestartsError(
                        f"no restart is left of {max_restarts}; the last attempt ended with {ended(code)}"
                    )
                again = f"started again{pause_words(pause_s)}, {restarts.used} of {max_restarts} times"
                self._say(f"ended with {ended(code)}; {again}")
                self._pause(pause_s)
                if not self._signals:
                    arguments = _resumed(arguments) if restarts.has_saved else arguments
                    code = self._once(arguments)
            return code and Interrupted.exit_code if self._signals else code
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

    def _pause(self, limit_s: float) -> None:
        """Wait so long, or until a signal comes, which does not end a sleep."""
        give_up_at = time.monotonic() + limit_s
        while not self._signals and (left_s := give_up_at - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left_s))

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        self._pass_on()

    def _pass_on(self) -> None:
        """Send the rank the signals that came since the last one. A handler may interrupt it: counted, then sent."""
        while self._pid and self._passed < len(self._signals):
            self._passed += 1
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self._pid, self._signals[0] if self._passed == 1 else signal.SIGKILL)


def _resumed(arguments: Sequence[str]) -> list[str]:
    """The arguments once more: a run that was to begin anew has begun, and come to a checkpoint."""
    words = list(arguments)
    if "--resume" in words and words[(place := words.index("--resume") + 1)] == "never":
        words[place] = "auto"
    return words


def say(prog: str) -> Callable[[str], None]:
    """Prints what happens to a command's rank."""
    return lambda text: print(f"{prog}: {text}", file=sys.stderr, flush=True)
