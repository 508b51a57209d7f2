"""A user's own words in messages: never longer than a line, on one line, and plain to a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

LONGEST = 60
"""Characters of a value that a message shows."""
_QUOTED, _LINE, _MESSAGE = 300, 1500, 12_000  # characters; 20 rows of a file each have a line
_WORD = re.compile(r"\S{301,}")
_BETWEEN = re.compile(r"([`'\"])([^`'\"\n]{301,})\1")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys or that turn a line's direction, and halves of surrogate pairs."""
_MARKUP = re.compile(r"[\\|]|\[(?=[^\[\]]*\]\()")
"""What ends a cell of a Markdown table, and what begins a link or a picture."""


def shortened(value: Any, longest: int = LONGEST) -> str:
    """`repr` of a value for a message, with `...` where it was cut; control characters and the like are escaped.

    Only the beginning of a long text or collection is laid out, so its size costs nothing.
    """
    if isinstance(value, str):
        return _cut(repr(value[: longest + 1]), longest, is_whole=len(value) <= longest)
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * longest:
        return f"a whole number of {value.bit_length()} bits"  # str() of a very long one is an error
    if isinstance(value, dict | list | tuple | set | frozenset) and not _is_small(value):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    try:
        return _cut(repr(value), longest, is_whole=True)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"


def plain(text: str) -> str:
    r"""The text with `\u001b` and the like in place of what a terminal would obey; line ends and tabs stay.

    Every language's own letters stay too, with the joiners that some scripts need. JSON stays the same JSON.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def bounded(message: str) -> str:
    """A plain message in which nothing quoted, no word and no line is longer than a reader can use.

    Every error of the package passes through here, whatever its author quoted. Ends stay: they say what to do, and of
    a path they are the file.
    """
    message = plain(message)
    if len(message) <= _QUOTED:
        return message
    message = _WORD.sub(lambda match: _middle_out(match[0], _QUOTED), message)
    message = _BETWEEN.sub(lambda match: match[1] + _middle_out(match[2], _QUOTED) + match[1], message)
    message = "\n".join(_middle_out(line, _LINE) for line in message.split("\n"))
    return _middle_out(message, _MESSAGE)


def for_csv(cell: object) -> object:
    """The cell of a table for programs: a text that a spreadsheet would compute gets a `'` before it.

    Numbers, and texts that are numbers, stay as they are.
    """
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return cell if cell == "-" else f"'{cell}"
    return cell


def for_markdown(cell: object) -> str:
    """The cell of a table for people: one line in which nothing is markup."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(plain(str(cell)).split()).replace("&", "&amp;").replace("<", "&lt;"))


def markdown_row(cells: Iterable[object]) -> str:
    """A row of a table for people."""
    return f"| {' | '.join(map(for_markdown, cells))} |"


def _middle_out(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"


def _cut(text: str, longest: int, *, is_whole: bool) -> str:
    return text if is_whole and len(text) <= longest + 2 else text[: longest - 3] + "..."


def _is_small(value: Any) -> bool:
    items = [*value.items()] if isinstance(value, dict) else [*value] if len(value) <= 8 else []
    flat = [part for item in items for part in (item if isinstance(item, tuple) else (item,))]
    return len(value) <= 8 and all(
        isinstance(part, str | int | float | bool | None)
        and (not isinstance(part, str) or len(part) <= LONGEST)
        and (not isinstance(part, int) or part.bit_length() < 200)
        for part in flat
    )
