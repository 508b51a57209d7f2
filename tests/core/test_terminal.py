"""Tables and lines on a terminal hold a user's words as text: no markup, no emoji, no command to the terminal."""

from __future__ import annotations

import io
import json
import logging

import pytest
from rich.table import Table

from fedtorch.core.shown import plain
from fedtorch.core.terminal import PlainConsole, PlainFormatter

NAMES = ["[red]north[/red]", "[/b]", ":heart:", "\x1b[2Jgone", "\x9b31m", "a\rb", "\x07", "\u202egnp.exe"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text_in_cells_titles_headings_and_lines(name: str) -> None:
    console = PlainConsole(file=io.StringIO(), width=200, force_terminal=False)
    table = Table("client", name, title=name)
    table.add_row(name, "1")
    console.print(table)
    console.print(f"lost: {name}")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count(plain(name)) == 4 and plain(text) == text


def test_a_log_line_obeys_nobody() -> None:
    record = logging.LogRecord(
        "fedtorch", logging.INFO, "x.py", 1, "client %s\nsecond line", ("\x1b]0;title\x07",), None
    )
    assert PlainFormatter("%(message)s").format(record) == "client \\u001b]0;title\\u0007\nsecond line"


@pytest.mark.parametrize("text", ["", "a\tb\nc", "naïve – 雪 🙂 می‌خواهم", "👩‍🚀", "\\x1b"])
def test_plain_texts_of_all_languages_stay(text: str) -> None:
    assert plain(text) is text or plain(text) == text


@pytest.mark.parametrize("char", ["\0", "\x1b", "\x7f", "\x9b", "\r", "\u2028", "\u202e", "\u2066", "\ud800", "\udcff"])
def test_what_a_terminal_obeys_is_shown_as_its_number_and_json_stays_the_same(char: str) -> None:
    text = plain(f"a{char}b")
    assert text == f"a\\u{ord(char):04x}b"
    text.encode()
    assert json.loads(plain(json.dumps({"a": char}, ensure_ascii=False))) == {"a": char}
