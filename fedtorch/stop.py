"""The signals that ask a run to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedtorch.errors import Interrupted

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class StopFlag:
    """Set by the first SIGTERM or SIGINT (or SLURM's USR1/USR2); a second SIGINT leaves at once.

    A thread of its own listens: Python's handlers run in the main one, and not while that waits in a collective.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the handlers and listen; main thread only. Afterwards the signals have no effect."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in _STOPPING:
            signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self._watch, args=(reader,), name="fedtorch-signals", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            os.close(writer)

    def _watch(self, reader: int) -> None:
        while received := os.read(reader, 1):  # empty when the other end is closed
            if self.signal is not None and received[0] == signal.SIGINT:
                os._exit(Interrupted.exit_code)
            if received[0] in _STOPPING:
                self.signal = received[0]
        os.close(reader)
