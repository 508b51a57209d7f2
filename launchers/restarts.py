"""How often a launcher starts again what has died, and how long it waits before."""

from __future__ import annotations

from pathlib import Path

from fedtorch.core.saved_rounds import last_saved

PAUSE_S = 1.0
"""Before the first restart; so that a rank that fails at once does not use up all of them in a moment."""
LONGEST_PAUSE_S = 60.0
"""Every further restart waits twice as long as the one before, at most this long."""


class Restarts:
    """So many restarts without a saved round between: a saved round gives all of them back, and the short pause."""

    def __init__(self, most: int, saved: Path) -> None:
        """saved: the file that the rank writes after a saved round, see `core.saved_rounds`."""
        self.most, self.used = most, 0
        self._saved = saved
        self._first = self._last = last_saved(saved)

    @property
    def has_saved(self) -> bool:
        """Was a round saved since this object was made?"""
        return last_saved(self._saved) != self._first

    def spend(self) -> float | None:
        """The seconds to wait before the next start; None: no restart is left."""
        if (last := last_saved(self._saved)) != self._last:
            self._last, self.used = last, 0
        if self.used >= self.most:
            return None
        self.used += 1
        # a power of a large number is a larger one than a float can be
        return min(PAUSE_S * 2.0 ** min(self.used - 1, 30), LONGEST_PAUSE_S)


def pause_words(pause_s: float) -> str:
    """Words for a pause that one would wonder about."""
    return f" after {pause_s:g} s" if pause_s >= 2 else ""
