"""Pictures of an audit, as SVG that stands in a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedtorch.report.svg import BOTTOM, COLORS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axes, bar_chart, start

MOST_BINS = 40


def bars(figures: Sequence[Mapping[str, Any]], *keys: str) -> str:
    """Bars of some figures of each row, named after channel and client."""
    rows = {
        f"{row['channel']}: {row['client']}": [None if row[key] is None else (float(row[key]),) * 3 for key in keys]
        for row in figures
    }
    return bar_chart(rows, keys, is_share=all(bar is None or bar[0] <= 1 for found in rows.values() for bar in found))


def curve(points: Sequence[tuple[float, float]], x_label: str, y_label: str) -> str:
    """A line over [0, 1] x [0, 1], with the diagonal of pure chance; empty without points."""
    if not points:
        return ""
    axes = Axes((-0.02, 1.02), (-0.02, 1.02))  # so that the line is seen where it runs along an edge
    parts = [start(kind=" bars"), *axes.frame(x_label, y_label)]
    parts.append(f'<polyline points="{axes.path([(0, 0), (1, 1)])}" class="error" fill="none" stroke-dasharray="4 4"/>')
    line = f'<polyline points="{axes.path(points)}" fill="none" stroke="{COLORS[0]}" stroke-width="1.8"/>'
    return "".join([*parts, line, "</svg>"])


def histogram(values: Sequence[float], marks: Mapping[str, float], x_label: str) -> str:
    """How many values fall into each of up to `MOST_BINS` bins, and named marks on the same axis."""
    everything = [*values, *marks.values()]
    low, high = min(everything), max(everything)
    high += low == high
    count = min(MOST_BINS, max(5, len(values) // 8))
    bins = [0] * count
    for value in values:
        bins[min(count - 1, int((value - low) / (high - low) * count))] += 1
    axes = Axes((low, high), (0, max(bins)))
    parts = [start(kind=" bars"), *axes.frame(x_label, "how many", has_y=False)]
    right = (WIDTH - LEFT - RIGHT) / count
    for place, number in enumerate(bins):
        x, y = axes.place(low + place * (high - low) / count, number)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{right - 1:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'fill="{COLORS[0]}"><title>{number}</title></rect>'
        )
    for place, (name, value) in enumerate(marks.items()):
        x, _ = axes.place(value, 0)
        side = ("end", -4) if x > (LEFT + WIDTH) / 2 else ("start", 4)  # towards the middle, where there is room
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{COLORS[1]}" stroke-width="2"/>')
        parts.append(
            f'<text x="{x + side[1]:.1f}" y="{TOP + 12 + 14 * place}" text-anchor="{side[0]}">{escape(name)}</text>'
        )
    return "".join([*parts, "</svg>"])
