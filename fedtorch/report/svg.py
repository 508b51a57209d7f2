"""Charts as SVG that stands in a page: curves with bands, and bars. All text is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fedtorch.report.groups import Band

COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 620, 320, 64, 40, 12
ROW, BAR = 8, 9
"""Pixels between two clients' bars, and of a bar."""


def line_chart(bands: Mapping[str, Band], y_label: str) -> str:
    """Curves over rounds: a mean with its band each, a legend, whole numbers below."""
    kept = {name: band for name, band in bands.items() if band.xs}
    xs = [x for band in kept.values() for x in band.xs]
    ys = [y for band in kept.values() for y in (*band.low, *band.high) if math.isfinite(y)]
    if not xs or not ys:
        return ""
    (x0, x1), (y0, y1) = (min(xs), max(xs)), (min(ys), max(ys))
    x1, y1 = x1 + (x0 == x1), y1 + (y0 == y1) * (abs(y1) or 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        right, down = (x - x0) / (x1 - x0), 1 - (y - y0) / (y1 - y0)
        return LEFT + right * (WIDTH - LEFT - 12), TOP + down * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18 * len(kept)}" role="img" class="chart">']
    for tick in ticks(x0, x1, whole=True):
        x, bottom = place(tick, y0)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle" class="tick">{tick:g}</text>')
    for tick in ticks(y0, y1):
        x, y = place(x0, tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{WIDTH - 12}"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    parts.append(f'<text x="{WIDTH - 12}" y="{HEIGHT - 6}" text-anchor="end">round</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(y_label)}</text>')
    for index, (name, band) in enumerate(kept.items()):
        parts += _curve(index, name, band, [place(x, y) for x, y in zip(band.xs, band.mean, strict=True)], place)
    return "".join([*parts, "</svg>"])


def _curve(index: int, name: str, band: Band, points: Sequence[tuple[float, float]], place: object) -> list[str]:
    color, dash = COLORS[index % 10], ("", "6 3", "2 3")[index // 10 % 3]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = []
    if any(band.spread):
        upper = [place(x, y) for x, y in zip(band.xs, band.high, strict=True)]  # type: ignore[operator]
        lower = [place(x, y) for x, y in zip(band.xs, band.low, strict=True)]  # type: ignore[operator]
        edge = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
        parts.append(f'<polygon points="{edge}" fill="{color}" fill-opacity="0.15"/>')
    title = f"<title>{escape(name)}</title>"
    parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8" stroke-dasharray="{dash}">'
                 f"{title}</polyline>")  # fmt: skip
    if len(points) < 60:
        for (x, y), at, value, spread in zip(points, band.xs, band.mean, band.spread, strict=True):
            told = f"{name}, round {at}: {value:.4g}" + (f" ± {spread:.2g}" if spread else "")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"><title>{escape(told)}</title></circle>'
            )
    y = HEIGHT + 18 * index + 8
    parts.append(f'<path d="M{LEFT} {y}h24" stroke="{color}" stroke-width="2.5" stroke-dasharray="{dash}"/>')
    return [*parts, f'<text x="{LEFT + 30}" y="{y + 4}">{escape(name)}</text>']


def bar_chart(rows: Mapping[str, Sequence[tuple[float, float] | None]], names: Sequence[str]) -> str:
    """Bars of each client, one for each of `names`: (mean, spread), None where there is none."""
    values = [pair for pairs in rows.values() for pair in pairs if pair is not None]
    if not values:
        return ""
    most = max(max(mean + spread for mean, spread in values), 0.0)
    least = min(min(mean - spread for mean, spread in values), 0.0)
    left, span, step = 170, (most - least) or 1.0, BAR * len(names) + ROW
    scale = (WIDTH - left - 60) / span
    zero, height = left - least * scale, step * len(rows) + 18 * len(names) + 10
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" class="chart bars">']
    for row, (client, pairs) in enumerate(rows.items()):
        top = row * step
        shown = client if len(client) <= 24 else f"{client[:23]}…"
        parts.append(f'<text x="{left - 6}" y="{top + step / 2:.1f}" text-anchor="end">{escape(shown)}</text>')
        for index, pair in enumerate(pairs):
            if pair is None:
                continue
            mean, spread = pair
            x, y = zero + min(mean, 0) * scale, top + index * BAR
            told = f"{client}, {names[index]}: {mean:.4g}" + (f" ± {spread:.2g}" if spread else "")
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{abs(mean) * scale:.1f}" height="{BAR - 1}" '
                         f'fill="{COLORS[index % 10]}"><title>{escape(told)}</title></rect>')  # fmt: skip
            if spread:
                ends = f"M{zero + (mean - spread) * scale:.1f} {y + BAR / 2}H{zero + (mean + spread) * scale:.1f}"
                parts.append(f'<path d="{ends}" class="error"/>')
    for index, name in enumerate(names):
        y = step * len(rows) + 18 * index + 8
        parts.append(f'<rect x="{left}" y="{y}" width="14" height="9" fill="{COLORS[index % 10]}"/>')
        parts.append(f'<text x="{left + 20}" y="{y + 9}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Five or so round numbers from `low` to `high`; whole ones only, if asked."""
    span = high - low
    size = 10 ** math.floor(math.log10(span / 5))
    step = next(size * unit for unit in (1, 2, 5, 10) if span / (size * unit) <= 6)
    step = max(1, math.ceil(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]
