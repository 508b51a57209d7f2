"""A clock that stands still while this process does: stopped, or suspended with its job or its machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

TICK_S = 0.25
"""Between two ticks; a process whose ticks are twice as far apart did not run meanwhile."""


class AwakeClock:
    """Seconds during which this process was awake, from any moment on; for limits on what others may take.

    After a pause in which nobody ran, everybody is late by the same time, and nobody is to blame for it. A thread
    ticks, and no reading is further ahead than two ticks of it.
    """

    def __init__(self) -> None:
        self._last = time.monotonic(), 0.0  # when it ticked last, and how long the process had slept by then
        threading.Thread(target=self._run, name="fedtorch-awake", daemon=True).start()

    def seconds(self) -> float:
        """Return its time."""
        ticked_at, slept = self._last
        return min(time.monotonic(), ticked_at + 2 * TICK_S) - slept

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            now, (ticked_at, slept) = time.monotonic(), self._last
            self._last = now, slept + max(0.0, now - ticked_at - 2 * TICK_S)


_clocks: dict[int, AwakeClock] = {}  # by process: a thread is not there in a fork


def awake_s() -> float:
    """Return the time of this process's clock, in seconds."""
    clock = _clocks.get(os.getpid()) or _clocks.setdefault(os.getpid(), AwakeClock())
    return clock.seconds()


def lefts(limit_s: float) -> Iterator[float]:
    """Yield how many seconds are left to wait, again and again until this process was awake for `limit_s`."""
    give_up_at = awake_s() + limit_s
    while (left := give_up_at - awake_s()) > 0:
        yield left
