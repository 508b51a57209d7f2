"""Charts as SVG that stands in a page: curves with bands, and bars, each with its legend. All text is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fedtorch.report.groups import Band

COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 250, 52, 14, 24, 36
"""Units of a chart, about pixels where three stand side by side, and of its margins."""
NAMES, ROW, BAR = 128, 9, 10
"""Units left of bars for clients' names, between two clients' bars, and of a bar with its gap."""
LETTERS = 19
"""So many of a name fit there."""

Bar = tuple[float, float, float]
"""A value, and the ends of what is known of it: the same number three times where nothing is."""


@dataclass(frozen=True)
class Axes:
    """The rectangle that a chart is drawn in, and what its sides stand for."""

    x: tuple[float, float]
    """ends of the horizontal axis"""
    y: tuple[float, float]
    """ends of the vertical axis"""

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn."""
        right, down = ((v - a) / (b - a) for v, (a, b) in ((x, self.x), (y, self.y)))
        return LEFT + right * (WIDTH - LEFT - RIGHT), TOP + (1 - down) * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """The points as SVG has them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.place(*point) for point in points))

    def frame(self, x_label: str, y_label: str, *, whole: bool = False, has_y: bool = True) -> list[str]:
        """Grid lines, numbers and labels: that of the vertical axis above it. whole: whole numbers below."""
        parts = [f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" '
                 'class="frame"/>']  # fmt: skip
        bottom = HEIGHT - BOTTOM
        for tick in ticks(*self.x, whole=whole):
            x, _ = self.place(tick, self.y[0])
            parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{_shown(tick)}</text>')
        for tick in ticks(*self.y) if has_y else ():
            _, y = self.place(self.x[0], tick)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_shown(tick)}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{escape(x_label)}</text>')
        return [*parts, f'<text x="4" y="{TOP - 9}">{escape(y_label)}</text>']


def start(height: float = HEIGHT, kind: str = "") -> str:
    """The tag that a chart begins with."""
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" class="chart{kind}">'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names beside their marks, which wrap where a page is narrow. entries: (name, CSS of the mark)."""
    marks = "".join(f'<span><i style="{style}"></i>{escape(name)}</span>' for name, style in entries)
    return f'<div class="legend">{marks}</div>' if entries else ""


def line_chart(
    bands: Mapping[str, Band],
    y_label: str,
    *,
    chosen: Mapping[str, Sequence[int]] | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    from_zero: bool = False,
) -> str:
    """Curves over rounds: a mean with its band each, and a legend.

    chosen: curve -> rounds to mark on it, those whose weights were scored; under another name those of all curves.
    bounds: what a value can be; bands are cut there. from_zero: the axis begins at 0.
    """
    kept = {name: band for name, band in bands.items() if band.xs}
    ends = {name: [(max(bounds[0], low), min(bounds[1], high)) for low, high in zip(band.low, band.high, strict=True)]
            for name, band in kept.items()}  # fmt: skip
    xs = [x for band in kept.values() for x in band.xs]
    ys = [y for own in ends.values() for pair in own for y in pair if math.isfinite(y)]
    if not xs or not ys:
        return ""
    axes = Axes((min(xs), max(xs) + (min(xs) == max(xs))), _around(ys, bounds, from_zero=from_zero))
    parts = [start(), *axes.frame("round", y_label, whole=True)]
    entries = []
    for index, (name, band) in enumerate(kept.items()):
        color, dash = COLORS[index % 10], ("", "6 3", "2 3")[index // 10 % 3]
        parts += _curve(axes, (name, color, dash), band, ends[name])
        rounds = sorted({round for round in (chosen or {}).get(name, ()) if min(xs) <= round <= max(xs)})
        parts += [_mark(axes, round, color, dict(zip(band.xs, band.mean, strict=True))) for round in rounds]
        if len(kept) > 1 or any(band.spread):
            entries.append((name, f"border-top:3px {('solid', 'dashed', 'dotted')[index // 10 % 3]} {color}"))
    everybodys = {round for name, rounds in (chosen or {}).items() if name not in kept for round in rounds}
    parts += [_mark(axes, round, "currentColor", {}) for round in sorted(everybodys) if min(xs) <= round <= max(xs)]
    if everybodys or any((chosen or {}).get(name) for name in kept):
        entries.append(("chosen round", "height:12px;min-width:0;border-left:2px dotted"))
    return "".join([*parts, "</svg>", legend(entries)])


def _around(ys: Sequence[float], bounds: tuple[float, float], *, from_zero: bool) -> tuple[float, float]:
    """Ends of a vertical axis with some room beside the values; of one value alone the bounds, where it has two."""
    low, high = min(ys), max(ys)
    if low == high and all(map(math.isfinite, bounds)):
        return bounds
    room = 0.04 * (high - low) or 0.5 * abs(low) or 1.0
    return min(0.0, low) if from_zero else low - room, high + room


def _curve(axes: Axes, look: tuple[str, str, str], band: Band, ends: Sequence[tuple[float, float]]) -> list[str]:
    name, color, dash = look
    parts = []
    if any(band.spread):
        edge = [(x, high) for x, (_, high) in zip(band.xs, ends, strict=True)]
        edge += reversed([(x, low) for x, (low, _) in zip(band.xs, ends, strict=True)])
        parts.append(f'<polygon points="{axes.path(edge)}" fill="{color}" fill-opacity="0.15"/>')
    points = list(zip(band.xs, band.mean, strict=True))
    parts.append(f'<polyline points="{axes.path(points)}" fill="none" stroke="{color}" stroke-width="1.8" '
                 f'stroke-dasharray="{dash}"><title>{escape(name)}</title></polyline>')  # fmt: skip
    for at, value, spread in zip(band.xs, band.mean, band.spread, strict=True) if len(points) < 60 else ():
        told = f"{name}, round {at}: {value:.4g}" + (f" ± {spread:.2g}" if spread else "")
        x, y = axes.place(at, value)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"><title>{escape(told)}</title></circle>')
    return parts


def _mark(axes: Axes, round: int, color: str, values: Mapping[int, float]) -> str:
    """A dashed line at the round, and a ring around the curve's point there."""
    x, _ = axes.place(round, axes.y[0])
    line = f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{color}" class="chosen"/>'
    if round not in values:
        return line
    x, y = axes.place(round, values[round])
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="none" stroke="{color}" stroke-width="1.8">'
    return f"{line}{ring}<title>chosen round {round}</title></circle>"


def bar_chart(
    rows: Mapping[str, Sequence[Bar | None]], names: Sequence[str], label: str = "", *, is_share: bool = False
) -> str:
    """Bars of each client, one for each of `names`, on an axis from 0; None where there is none.

    is_share: the axis goes from 0 to 1, whatever the largest value is.
    """
    values = [bar for bars in rows.values() for bar in bars if bar is not None]
    if not values:
        return ""
    least = min(0.0, *(low for _, low, _ in values))
    most = 1.0 if is_share else max(0.0, *(high for _, _, high in values))
    scale = (WIDTH - NAMES - RIGHT) / ((most - least) or 1.0)
    zero, step = NAMES - least * scale, BAR * len(names) + ROW
    bottom = step * len(rows) + 4
    parts = [start(bottom + BOTTOM, " bars")]
    for tick in ticks(least, most if most > least else least + 1.0):
        x = zero + tick * scale
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{_shown(tick)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 30}" text-anchor="end">{escape(label)}</text>')
    for row, (client, bars) in enumerate(rows.items()):
        top = row * step + ROW / 2
        shown = client if len(client) <= LETTERS else f"{client[: LETTERS - 1]}…"
        middle = top + (step - ROW) / 2 + 4
        parts.append(f'<text x="{NAMES - 6}" y="{middle:.1f}" text-anchor="end">{escape(shown)}'
                     f"<title>{escape(client)}</title></text>")  # fmt: skip
        for index, bar in enumerate(bars):
            if bar is not None:
                parts += _bar(bar, f"{client}, {names[index]}", COLORS[index % 10], (zero, scale, top + index * BAR))
    entries = [(name, f"border-top:9px solid {COLORS[index % 10]};opacity:0.7") for index, name in enumerate(names)]
    return "".join([*parts, "</svg>", legend(entries if len(names) > 1 else [])])


def _bar(bar: Bar, name: str, color: str, where: tuple[float, float, float]) -> list[str]:
    """A bar, and a line from end to end of what is known. where: of 0 on the axis, the axis' scale, the bar's top."""
    (value, low, high), (zero, scale, y) = bar, where
    told = f"{name}: {value:.4g}" + (f" ({low:.4g} to {high:.4g})" if low < high else "")
    parts = [f'<rect x="{zero + min(value, 0) * scale:.1f}" y="{y:g}" width="{abs(value) * scale:.1f}" '
             f'height="{BAR - 1}" fill="{color}" fill-opacity="0.7"><title>{escape(told)}</title></rect>']  # fmt: skip
    if low < high:
        middle = y + (BAR - 1) / 2
        ends = [zero + end * scale for end in (low, high)]
        caps = "".join(f"M{x:.1f} {middle - 3:g}v6" for x in ends)
        parts.append(f'<path d="M{ends[0]:.1f} {middle:g}H{ends[1]:.1f}{caps}" class="error"/>')
    return parts


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Five or so round numbers from `low` to `high`; whole ones only, if asked."""
    span = high - low
    size = 10 ** math.floor(math.log10(span / 5))
    step = next(size * unit for unit in (1, 2, 5, 10) if span / (size * unit) <= 6)
    step = max(1, math.ceil(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _shown(tick: float) -> str:
    """Write 0.6000000000000001 as 0.6, and large numbers short."""
    return f"{tick:.4g}" if abs(tick) < 1e4 else f"{tick:.3g}"
