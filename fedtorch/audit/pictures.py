"""Pictures of an audit, as SVG that stands in a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedtorch.report.svg import BOTTOM, COLORS, HEIGHT, LEFT, TOP, WIDTH, bar_chart, ticks

MOST_BINS = 40


def bars(figures: Sequence[Mapping[str, Any]], *keys: str) -> str:
    """Bars of some figures of each row, named after channel and client."""
    rows = {
        f"{row['channel']}: {row['client']}": [None if row[key] is None else (float(row[key]), 0.0) for key in keys]
        for row in figures
    }
    return bar_chart(rows, keys)


def curve(points: Sequence[tuple[float, float]], x_label: str, y_label: str) -> str:
    """A line over [0, 1] x [0, 1], with the diagonal of pure chance; empty without points."""
    if not points:
        return ""
    right, down = WIDTH - LEFT - 12, HEIGHT - TOP - BOTTOM
    path = " ".join(f"{LEFT + x * right:.1f},{TOP + (1 - y) * down:.1f}" for x, y in points)
    parts = [_start()]
    for tick in ticks(0.0, 1.0):
        x, y = LEFT + tick * right, TOP + (1 - tick) * down
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - 12}M{x:.1f} {TOP}V{TOP + down}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + down + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<path d="M{LEFT} {TOP + down}L{LEFT + right} {TOP}" class="error" stroke-dasharray="4 4"/>')
    parts.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[0]}" stroke-width="1.8"/>')
    return "".join([*parts, _labels(x_label, y_label), "</svg>"])


def histogram(values: Sequence[float], marks: Mapping[str, float], x_label: str) -> str:
    """How many values fall into each of up to `MOST_BINS` bins, and named marks on the same axis."""
    everything = [*values, *marks.values()]
    low, high = min(everything), max(everything)
    high += low == high
    count = min(MOST_BINS, max(5, len(values) // 8))
    bins = [0] * count
    for value in values:
        bins[min(count - 1, int((value - low) / (high - low) * count))] += 1
    right, down, most = WIDTH - LEFT - 12, HEIGHT - TOP - BOTTOM, max(bins)
    parts = [_start()]
    for place, number in enumerate(bins):
        tall = number / most * down
        parts.append(
            f'<rect x="{LEFT + place * right / count:.1f}" y="{TOP + down - tall:.1f}" width="{right / count - 1:.1f}" '
            f'height="{tall:.1f}" fill="{COLORS[0]}"><title>{number}</title></rect>'
        )
    for tick in ticks(low, high):
        x = LEFT + (tick - low) / (high - low) * right
        parts.append(f'<text x="{x:.1f}" y="{TOP + down + 16}" text-anchor="middle">{tick:.3g}</text>')
    for place, (name, value) in enumerate(marks.items()):
        x = LEFT + (value - low) / (high - low) * right
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + down}" stroke="{COLORS[1]}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{TOP + 12 + 14 * place}">{escape(name)}</text>')
    return "".join([*parts, _labels(x_label, ""), "</svg>"])


def _start() -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="chart bars">'


def _labels(x_label: str, y_label: str) -> str:
    return (
        f'<text x="{WIDTH - 12}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(y_label)}</text>'
    )
