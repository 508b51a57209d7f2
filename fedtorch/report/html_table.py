"""Tables of a page whose columns sort, and what a cell is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from statistics import fmean, stdev

from fedtorch.core.terminal import NOTHING, Cell


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, texts: bool = False, kind: str = "") -> str:
    """A table whose columns sort. texts: the cells are values of a config. kind: its class."""
    body = []
    for row in rows:
        cells = []
        for place, (shown, value) in enumerate(row):
            looks = " class='text'" if texts and place else ""
            text = escape(shown) if place else breakable(shown)
            cells.append(f'<td data-v="{escape("" if value is None else str(value))}"{looks}>{text}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return framed(heads, "".join(body), kind)


def framed(heads: Sequence[str], body: str, kind: str = "") -> str:
    """A table of rows that are HTML already; where it is wider than the page it scrolls by itself."""
    head = "".join(f"<th>{breakable(text)}</th>" for text in heads)
    start = f"<div class='wide'><table class='{kind}'><thead><tr>{head}</tr></thead>"
    return f"{start}<tbody>{body}</tbody></table></div>"


def breakable(name: str) -> str:
    """A name, escaped, that a narrow page may break after a comma or an equals sign, as names of sweeps have."""
    return re.sub("([,=])", r"\1<wbr>", escape(name))


def number(values: Sequence[float], digits: int = 4) -> Cell:
    """A mean over seeds with its standard deviation, or the only value."""
    if not values:
        return NOTHING
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}", fmean(values)


def interval(ends: tuple[float, float] | None) -> Cell:
    """Low and high end; sorted by the width."""
    return NOTHING if ends is None else (f"{ends[0]:.3f} to {ends[1]:.3f}", ends[1] - ends[0])


def section(heading: str, body: str) -> str:
    """A part of the page; nothing where there is nothing in it."""
    return f"<section><h2>{escape(heading)}</h2>{body}</section>" if body else ""


def note(text: str) -> str:
    """A remark."""
    return f"<p class='note'>{escape(text)}</p>"
