"""A silo's own status.json and its lines on the terminal: what the server's records say, as far as a silo knows it.

Where silo and server share a folder the file there is the server's, and stays so.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from typing_extensions import Self

from fedtorch.config.schema import Config
from fedtorch.lifecycle.status import NAME, read_status, write_status
from fedtorch.rounds.runner import Runner
from fedtorch.tracking.console import Console, Progress

VARIABLE = "FEDTORCH_SILO"
"""Environment variable in which a launcher names the clients of this rank, where it is a silo with a folder of its
own."""
_LOOK_S = 0.5


def silo() -> str:
    """Whose silo this process is; empty: nobody's."""
    return os.environ.get(VARIABLE, "")


def is_servers(folder: Path) -> bool:
    """Is the status.json there, if there is one, another's than a silo's?"""
    return (folder / NAME).exists() and "silo" not in read_status(folder)


def write_silo_status(
    config: Config, silo: str, *, code: int | None, reason: str, command: str, round: int | None = None
) -> None:
    """Like `write_status` in the run's folder, with the silo's name, unless the file is the server's."""
    if not is_servers(config.folder):
        about = {"reason": reason, "command": command, "silo": silo}
        write_status(config.folder, code=code, round=round, has_time=config.tells_times, **about)


class SiloRounds:
    """While it is entered, every round that this rank has done is printed and written into status.json.

    A thread looks at the runner, so nothing that the ranks do together waits for a terminal or a disk.
    """

    def __init__(self, runner: Runner, done: int, config: Config, command: str) -> None:
        """done: rounds of an earlier process. config: of the run in whose folder the file is."""
        self._runner, self._config, self._command, self._name = runner, config, command, silo()
        shown: Progress = "off" if config.track.progress == "off" else "lines"
        self._console = Console(shown, runner.components.config.rounds, done, has_times=config.tells_times)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fedtorch-silo", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        self._write(self._console.done)
        while True:
            is_last = self._over.wait(_LOOK_S)
            done = self._runner.context.round
            if done > self._console.done:
                for round in range(self._console.done + 1, done + 1):
                    self._console.round(round, [("silo", self._name)])
                self._write(done)
            if is_last:
                return

    def _write(self, done: int) -> None:
        write_silo_status(self._config, self._name, code=None, reason="running", command=self._command, round=done)
