"""Tables and lines on the terminal in which a user's own words are nothing but text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedtorch.core.shown import plain

WIDTH = 120
"""Letters of a line in a file or a pipe."""
Cell = tuple[str, str | float | None]
"""What is shown in a table, and what a column is sorted by where it can be."""
NOTHING: Cell = ("-", None)
ROWS_SHOWN = 20
"""Rows of a table; more are counted."""


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


def print_table(
    console: Console,
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    total: Sequence[str] = (),
    left: Collection[str] = (),
) -> None:
    """Print a title and a table below it; of many rows the first ones, and how many there are more.

    total: the last row, below a line; empty: there is none. left: heads of columns of words, beside the first one; in
    the others numbers stand at the right.
    """
    console.print(title, soft_wrap=True)
    table = Table(heads[0], box=box.SIMPLE)
    for name in heads[1:]:
        table.add_column(name, justify="left" if name in left else "right")
    for row in rows[:ROWS_SHOWN]:
        table.add_row(*row)
    if len(rows) > ROWS_SHOWN:
        table.add_row(f"... and {len(rows) - ROWS_SHOWN} more")
    if total:
        table.add_section()
        table.add_row(*total)
    console.print(table)


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
