"""A user's own words in messages: never longer than a line, on one line, and plain to a terminal."""

from __future__ import annotations

from typing import Any

LONGEST = 60
"""Characters of a value that a message shows."""


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


def shortened_word(text: str, longest: int = LONGEST) -> str:
    """The same of a name or key, without quotation marks: what stands between backticks."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: longest + 1])
    return _cut(plain, longest, is_whole=len(text) <= longest)


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
