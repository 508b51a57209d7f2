"""Shows a person how a run goes on: a bar on a terminal, one line per round elsewhere, a table at the end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tqdm import tqdm

from fedtorch.core.shown import plain

Progress = Literal["auto", "bar", "lines", "off"]

REDRAW_S = 0.25  # between two looks of the bar
HEARTBEAT_S = 30.0  # between two lines about what goes on inside a long round


class Console:
    """Shows the rounds of a run; used by the server only. Lines go to stdout and stay, the bar goes to stderr."""

    def __init__(
        self,
        progress: Progress,
        rounds: int,
        done: int,
        *,
        has_times: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """rounds: planned. done: by an earlier process. has_times: say how long rounds took. clock: in seconds."""
        self._has_times = has_times
        if progress == "auto":
            progress = "bar" if sys.stderr.isatty() and sys.stdout.isatty() else "lines"
        self.progress, self.rounds, self.done, self.clock = progress, rounds, done, clock
        self._started = self._last_round = self._last_shown = clock()
        self._done_before = done
        self._left = ""
        self._bar: tqdm[Any] | None = None
        if progress == "bar":
            self._bar = tqdm(
                total=rounds,
                initial=done,
                file=sys.stderr,
                dynamic_ncols=True,
                leave=False,
                bar_format="round {n_fmt}/{total_fmt} |{bar:20}| {desc}",
            )

    def round(self, done: int, facts: Sequence[tuple[str, str]]) -> str:
        """Show that `done` rounds are done; returns the line, also if it is not shown."""
        now = self.clock()
        elapsed, here = now - self._started, max(1, done - self._done_before)
        left = elapsed / here * max(0, self.rounds - done)
        self.done = done
        width = len(str(self.rounds))
        times = [("", f"{now - self._last_round:.1f}s".rjust(6)), ("left", duration(left))]
        shown = [*facts, *(times if self._has_times else ())]
        text = "  ".join(" ".join(filter(None, pair)) for pair in shown)
        line = f"round {done:>{width}}/{self.rounds}  {text}"
        self._last_round = now
        self.say(line)
        if self._bar is not None:
            self._left = f"left {duration(left)}" if self._has_times else ""
            self._bar.n = done
            self._draw(now)
        return line

    def working(self, text: str) -> None:
        """Show what is being trained; cheap enough for every step."""
        now = self.clock()
        if self._bar is not None and now - self._last_shown >= REDRAW_S:
            self._draw(now, text)
        elif self.progress == "lines" and now - self._last_shown >= HEARTBEAT_S:
            width = len(str(self.rounds))
            self.say(
                f"round {min(self.done + 1, self.rounds):>{width}}/{self.rounds}  {now - self._last_round:.0f}s  {text}"
            )

    def say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.progress == "off":
            return
        self._last_shown, line = self.clock(), plain(line)
        if self._bar is not None:
            self._bar.write(line, file=sys.stdout)
        else:
            print(line, flush=True)

    def close(self) -> None:
        """Take the bar away; the lines stay."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _draw(self, now: float, text: str = "") -> None:
        assert self._bar is not None
        self._last_shown = now
        # what changes most comes first: the terminal cuts off what does not fit
        self._bar.set_description_str(plain("  ".join(filter(None, (text, self._left)))), refresh=True)


class TerminalHandler(logging.Handler):
    """Log lines on the terminal that do not tear the bar apart; for stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print above whatever bar is on the screen."""
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:  # logging must not end a program
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the standard library's name
        """The line is lost: `logging`'s own would print it on stderr with a traceback, debug lines too."""


def duration(seconds: float) -> str:
    """Two units at most: 45s, 12m, 3h20m."""
    if seconds < 90:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 90 else f"{minutes // 60}h{minutes % 60:02d}m"
