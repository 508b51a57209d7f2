"""Tables and lines on the terminal in which a user's own words are nothing but text."""

from __future__ import annotations

import logging
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from fedtorch.core.shown import plain

WIDTH = 120
"""Letters of a line in a file or a pipe."""


class PlainConsole(Console):
    """A console of rich that takes no word for markup, an emoji or a command to the terminal."""

    def __init__(self, *, width: int | None = None, piped: int = WIDTH, **more: Any) -> None:
        """width: letters of a line; None: the terminal's, and `piped` where there is none."""
        if width is None and more.get("file") is None and not sys.stdout.isatty():
            width = piped
        super().__init__(width=width, markup=False, emoji=False, highlight=False, **more)

    def render_str(self, text: str, **more: Any) -> Text:
        """Every text passes through here, in a table's cell and in a line of its own."""
        return super().render_str(plain(text), **more)


class PlainFormatter(logging.Formatter):
    """Log lines in which what is quoted is no command to the terminal, also to the one where the file is read."""

    def format(self, record: logging.LogRecord) -> str:
        """With the error's frames, where there are some."""
        return plain(super().format(record))


def log_to_terminal(level: int) -> None:
    """Show log lines from `level` on, on stderr, for a command that has no log file."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
