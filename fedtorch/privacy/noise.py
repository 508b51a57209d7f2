"""The noise of a release: by its kind, and drawn ahead of time where the server waits for others who train."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from fedtorch.privacy.discrete import add_discrete
from fedtorch.privacy.stream import Stream, add_noise, derived

Add = Callable[[npt.NDArray[np.float64], float, Stream], None]
"""Adds noise of a standard deviation, from a stream, to whole numbers, in place."""
ADD: Mapping[str, Add] = {"normal": add_noise, "discrete": add_discrete}
"""`privacy.noise` -> what draws it."""


class Noise:
    """Draws each release's noise; `expect` may have drawn it before, in a thread, with the same bits.

    What was drawn ahead is 8 bytes for each number, kept until the release; what does not fit the release after all
    (another attempt, a moved clip) is thrown away. A thread that fails leaves it to `add`, which then fails as it would
    have without.
    """

    def __init__(self, kind: str) -> None:
        self._add = ADD[kind]
        self._for: tuple[object, ...] = ()
        self._drawn: npt.NDArray[np.float64] | None = None
        self._thread: threading.Thread | None = None

    def expect(self, key: bytes, round: int, attempt: int, deviation: float, count: int) -> None:
        """Begin to draw; returns at once."""
        self._drop()
        self._for = key, round, attempt, deviation, count
        self._thread = threading.Thread(target=self._draw, args=self._for, name="noise", daemon=True)
        self._thread.start()

    def add(self, whole: npt.NDArray[np.float64], key: bytes, round: int, attempt: int, deviation: float) -> None:
        """Add it to the whole numbers of a sum, in place."""
        if self._thread is not None and self._for == (key, round, attempt, deviation, len(whole)):
            self._thread.join()
        if self._drawn is not None and self._for == (key, round, attempt, deviation, len(whole)):
            np.add(whole, self._drawn, out=whole)
        else:
            self._add(whole, deviation, Stream(derived(key, "noise", round, attempt)))
        self._drop()

    def _draw(self, key: bytes, round: int, attempt: int, deviation: float, count: int) -> None:
        drawn = np.zeros(count)
        self._add(drawn, deviation, Stream(derived(key, "noise", round, attempt)))
        if self._for == (key, round, attempt, deviation, count):
            self._drawn = drawn

    def _drop(self) -> None:
        self._for, self._drawn, self._thread = (), None, None
