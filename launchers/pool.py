"""Several runs on this machine, a few at a time: what people without a cluster use.

One run that fails does not stop the others. The first Ctrl-C (or SIGTERM) asks every run to save and end, the second
one ends them at once; nothing is left behind either way. While a run goes on its process holds a lock in the run
folder, also when this program itself was killed, so no run is ever started twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fedtorch.lifecycle.run_lock import is_held, take

LOCK = ".lock"
SAVE_S = 120.0
"""How long an interrupted run may take to save before it is killed."""


@dataclass(frozen=True)
class Command:
    """A run to be started."""

    name: str
    """for messages and exit codes; another run of the pool has another"""
    words: Sequence[str]
    """program and arguments"""
    folder: Path
    """of the run; output goes to its `output.txt`"""


@dataclass
class _Running:
    command: Command
    """what was started"""
    process: subprocess.Popen[bytes]
    """leader of a session of its own"""
    slot: int
    """from 0, one of `at_once`; decides about its variables, such as the GPU"""


Tell = Callable[[str, str, int], None]
"""Called with a run's name, `started`, `locked` or `ended`, and (at the end) its exit status; else 0."""


class Pool:
    """Runs commands, some at a time. Main thread only."""

    def __init__(self, at_once: int, environment: Callable[[int], Mapping[str, str]], tell: Tell) -> None:
        """at_once: most runs at a time. environment: slot number (0 ... at_once - 1) -> variables of a run in it."""
        self._at_once, self._environment, self._tell = at_once, environment, tell
        self._running: list[_Running] = []
        self._signals = 0

    def run(self, commands: Sequence[Command]) -> tuple[dict[str, int], bool]:
        """Exit status of every run that was started and ended, by name, and whether a signal cut it short.

        A run whose lock another process holds is left out.
        """
        waiting, codes = list(commands), dict[str, int]()
        previous = {number: signal.signal(number, self._received) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self._running or (waiting and not self._signals):
                self._start_some(waiting)
                self._collect(codes)
                time.sleep(0.05)
                if self._signals:
                    self._finish(codes)
        finally:
            self._kill()
            for number, handler in previous.items():
                signal.signal(number, handler)
        return codes, bool(self._signals)

    def _start_some(self, waiting: list[Command]) -> None:
        while waiting and len(self._running) < self._at_once and not self._signals:
            command = waiting.pop(0)
            slot = min(set(range(self._at_once)) - {running.slot for running in self._running})
            process = _start(command, self._environment(slot))
            self._tell(command.name, "locked" if process is None else "started", 0)
            if process is not None:
                self._running.append(_Running(command, process, slot))

    def _collect(self, codes: dict[str, int]) -> None:
        for running in [r for r in self._running if r.process.poll() is not None]:
            self._running.remove(running)
            codes[running.command.name] = running.process.returncode
            self._tell(running.command.name, "ended", running.process.returncode)

    def _finish(self, codes: dict[str, int]) -> None:
        """Ask all to end, and wait for them; kill what is left when time or patience is up."""
        give_up_at = time.monotonic() + SAVE_S
        for running in self._running:
            running.process.terminate()  # torchrun passes it on to its ranks
        while self._running and self._signals < 2 and time.monotonic() < give_up_at:
            self._collect(codes)
            time.sleep(0.05)
        self._kill()
        self._collect(codes)

    def _kill(self) -> None:
        for running in self._running:
            try:
                os.killpg(running.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            running.process.wait()

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1


def hold(folder: Path, name: str = LOCK) -> int | None:
    """Take a launcher's lock of a run folder: its file descriptor, for this process and those that inherit it.

    None if another launcher holds it. It is not the server's lock (`lifecycle.run_lock`), because a launcher holds it
    between two attempts too, and a server that torchrun or SLURM starts cannot inherit it.
    """
    lock = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
    if _take(lock, tries=5):  # whoever asks for the status holds it for an instant
        return lock
    os.close(lock)
    return None


def is_locked(folder: Path) -> bool | None:
    """Does a process hold this run? None if none does, and it was never run by a pool."""
    if is_held(folder):
        return True
    path = folder / LOCK
    if not path.exists():
        return None
    lock = os.open(path, os.O_RDWR)
    try:
        return not _take(lock)
    finally:
        os.close(lock)


def _start(command: Command, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Start in a session of its own, so that the terminal's Ctrl-C reaches only the pool; None if it is locked."""
    command.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = None if is_held(command.folder) else hold(command.folder)
    if lock is None:
        return None
    try:
        with (command.folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                pass_fds=(lock,),
            )
    finally:
        os.close(lock)


def _take(lock: int, tries: int = 1) -> bool:
    for number in range(tries):
        time.sleep(0.05 if number else 0)
        try:
            if take(lock):
                return True
        except OSError:  # a file system without locks; the run warns of it
            return True
    return False
