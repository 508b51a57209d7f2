"""The signals that ask a run to stop."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from fedtorch.core.errors import Interrupted
from fedtorch.core.streams import pipe_above_streams

GRACE_S = 20.0  # torchrun and SLURM send SIGKILL 30 s after SIGTERM
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_APART_S = 0.5
_LAST_WORDS_S = 4.0  # for each: the disk may hang too


class StopFlag:
    """Set by the first SIGTERM or SIGINT (or SLURM's USR1/USR2); a second SIGINT leaves at once.

    A thread of its own listens: Python's handlers run in the main one, and not while that waits in a collective.
    So it also leaves, with code 75, when the main thread has not ended `grace_s` after the first signal.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first one received."""
        self.grace_s: float | None = GRACE_S
        """Seconds from the first signal till that thread leaves; None: never."""
        self.last_words: Callable[[], object] | None = None
        """What it calls before it leaves, for the run."""
        self.hand_over: Callable[[], object] | None = None
        """What it calls after that, for a launcher."""
        self._received_at = 0.0

    def __call__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the handlers and listen; main thread only. Afterwards the signals have no effect."""
        reader, writer = pipe_above_streams()
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

    @contextmanager
    def listening_as_guest(self) -> Iterator[None]:
        """Listen in a process that is not the run's own: the handlers are put back, and nothing here ends it.

        The second SIGINT raises KeyboardInterrupt in the main thread, wherever that is. On another thread nothing is
        installed, as Python allows no handlers there, and signals are the main thread's.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def receive(number: int, frame: FrameType | None) -> None:
            if self.signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._received_at = self._received_at or time.monotonic()
            self.signal = self.signal or number

        before = {number: signal.signal(number, receive) for number in _STOPPING}
        try:
            yield
        finally:
            for number, handler in before.items():
                if handler is not None:  # None: one that Python has not installed and cannot put back
                    signal.signal(number, handler)

    @property
    def is_due(self) -> bool:
        """Is the grace over, but for what ranks hear the same signal apart? Others then leave because of it too."""
        left = self._time_left()
        return left is not None and left < _APART_S

    def _watch(self, reader: int) -> None:
        while True:
            left = self._time_left()
            ready, _, _ = select.select([reader], [], [], left)
            if not ready:
                if self._time_left() == 0:
                    self._leave()
                continue
            if not (received := os.read(reader, 1)):  # the other end is closed
                break
            if self.signal is not None and received[0] == signal.SIGINT:
                os._exit(Interrupted.exit_code)
            if received[0] in _STOPPING:
                self._received_at = self._received_at or time.monotonic()
                self.signal = received[0]
        os.close(reader)

    def _time_left(self) -> float | None:
        if self.signal is None or self.grace_s is None:
            return None
        return max(0.0, self._received_at + self.grace_s - time.monotonic())

    def _leave(self) -> None:
        for action in filter(None, (self.last_words, self.hand_over)):
            thread = threading.Thread(target=action, daemon=True)
            thread.start()
            thread.join(_LAST_WORDS_S)
        os._exit(Interrupted.exit_code)
