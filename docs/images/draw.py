"""Draws pictures of the documentation, from the architecture's table and `pictures.yaml`; run it as a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

HERE = Path(__file__).parent
INK, GREY, NUMBER = "#1d2733", "#656d76", "#4a4f9c"
SERVER, WORKER, STORE = ("#dbe7f6", "#4f7db0"), ("#e4f0e2", "#5b9157"), ("#fdf3da", "#b78e34")
SHADES = ("#eef2f7", "#dbe7f6")
PURPOSES = {
    "core": "states, updates, seeds", "metrics": "scores", "config": "keys, checks", "checkpoint": "files that last",
    "compression": "top-k, 8 bits", "privacy": "noise, ledger, masks", "text": "tokenizers", "tracking": "records",
    "trust": "keys, receipts", "cli": "fedtorch …", "stats": "counts of silos",
    "comm": "job · transport\nsums · sparse", "data": "readers", "report": "tables, plots",
    "train": "one client's steps", "models": "networks, LoRA", "algorithms": "a rule per file",
    "tasks": "data + model + loss", "chat": "talk to a model", "rounds": "the loop", "setup": "config → run, refusals",
    "lifecycle": "join, resume, end", "planning": "dry run, costs", "audit": "attacks", "main": "one run",
    "api": "from Python", "launchers": "processes, SLURM",
    "trainers": "those of others", "client": "in a script",
}  # fmt: skip


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure whose units are hundredths of an inch, y downwards."""
    figure = Figure(figsize=(width / 100, height / 100), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def box(axes: Axes, at: tuple[float, float, float, float], colours: tuple[str, str], head: str, text: str = "") -> None:
    """A box at (left, top, width, height) with a bold line and smaller ones below it."""
    left, top, wide, high = at
    fill, edge = colours
    style = "round,pad=0,rounding_size=6"
    axes.add_patch(FancyBboxPatch((left, top), wide, high, boxstyle=style, facecolor=fill, edgecolor=edge))
    middle, lines = left + wide / 2, text.count("\n") + 1 if text else 0
    up = 7.5 * lines
    axes.text(middle, top + high / 2 - up, head, ha="center", va="center", color=INK, fontsize=9, weight="bold")
    if text:
        axes.text(middle, top + high / 2 + 9, text, ha="center", va="center", color=INK, fontsize=7.5, linespacing=1.3)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A line with a tip."""
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": GREY, "lw": 1.4})


def floors(allowed: Mapping[str, set[str]]) -> list[list[str]]:
    """Rooms by how many are below them on the longest way down."""
    depth: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in depth:
            depth[room] = 1 + max((of(below) for below in allowed[room]), default=-1)
        return depth[room]

    found: list[list[str]] = [[] for _ in range(1 + max(map(of, allowed)))]
    for room in allowed:
        found[depth[room]].append(room)
    return found


def rooms_of(page: str) -> dict[str, set[str]]:
    """Room -> the rooms that it may import, by the page's table."""
    table = page.partition("| room | may import |\n|---|---|\n")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {}
    for names, below in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE):
        found.update(dict.fromkeys(names.split(", "), set(below.split(", ")) - {"nothing of ours"}))
    return found


def draw_rooms(allowed: Mapping[str, set[str]]) -> Figure:
    """Rooms on floors; each imports from floors below it only."""
    levels = floors(allowed)
    figure, axes = canvas(920, 74 * len(levels) + 16)
    for level, rooms in enumerate(levels):
        top = 74 * (len(levels) - 1 - level) + 10
        wide = 900 / max(6, len(rooms)) - 10
        left = (920 - len(rooms) * (wide + 10) + 10) / 2
        for place, room in enumerate(rooms):
            colours = (SHADES[level % 2], SERVER[1])
            box(axes, (left + place * (wide + 10), top, wide, 60), colours, room, PURPOSES[room])
    return figure


def _list(value: Any) -> list[int]:
    return value if isinstance(value, list) else [value]


def draw_sequence(columns: Sequence[str], steps: Sequence[Mapping[str, Any]]) -> Figure:
    """Columns are those who take part, steps go down; an arrow is what moves, a box what somebody does."""
    figure, axes = canvas(920, 50 * len(steps) + 80)
    at = [150 + 640 * place / (len(columns) - 1) for place in range(len(columns))]
    for place, (x, name) in enumerate(zip(at, columns, strict=True)):
        colours = (STORE, SERVER, WORKER, WORKER)[place]
        axes.plot([x, x], [50, 50 * len(steps) + 70], color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=0)
        box(axes, (x - 80, 12, 160, 36), colours, name)
    for row, step in enumerate(steps):
        y = 50 * row + 92
        axes.text(16, y + 3, str(row + 1), color=NUMBER, fontsize=10, weight="bold", va="center")
        if "by" in step:
            left, right = at[step["by"][0]] - 110, at[step["by"][-1]] + 110
            colours = SERVER if step["by"] == [1] else STORE if step["by"][0] == 0 else WORKER
            patch = FancyBboxPatch(
                (left, y - 12), right - left, 28, boxstyle="round,pad=0,rounding_size=5", facecolor=colours[0],
                edgecolor=colours[1],
            )  # fmt: skip
            axes.add_patch(patch)
            axes.text((left + right) / 2, y + 2, step["text"], ha="center", va="center", color=INK, fontsize=8.5)
            continue
        ends = [(start, end) for start in _list(step["from"]) for end in _list(step["to"])]
        for number, (start, end) in enumerate(sorted(ends, key=lambda ends: -abs(ends[0] - ends[1]))):
            arrow(axes, (at[start], y + 8 * number), (at[end], y + 8 * number))
        label = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        middle = (at[_list(step["from"])[0]] + at[_list(step["to"])[0]]) / 2
        axes.text(middle, y - 11, step["text"], ha="center", va="center", color=INK, fontsize=8.5, bbox=label)
    return figure


def draw_update(lanes: Sequence[Mapping[str, Any]]) -> Figure:
    """Two lanes: the first goes right, the second, below it, comes back."""
    figure, axes = canvas(920, 300)
    for lane, (colours, top) in enumerate(((WORKER, 34), (SERVER, 190))):
        boxes = lanes[lane]["boxes"]
        at = top - 14 if lane == 0 else top + 92
        axes.text(16, at, lanes[lane]["name"], color=GREY, fontsize=9, va="center")
        for place, (head, text) in enumerate(boxes):
            left = 16 + 181 * place
            box(axes, (left, top, 160, 76), colours, head, text)
            if place + 1 < len(boxes):
                start, end = (left + 160, left + 181) if lane == 0 else (left + 181, left + 160)
                arrow(axes, (start, top + 38), (end, top + 38))
    last = 16 + 181 * 4 + 80
    arrow(axes, (last, 110), (last, 190))
    axes.text(last - 8, 150, "the wire, once", ha="right", va="center", color=INK, fontsize=8.5)
    arrow(axes, (96, 190), (96, 110))
    axes.text(104, 150, "the wire, next round", ha="left", va="center", color=INK, fontsize=8.5)
    return figure


def draw_units(ways: Sequence[Mapping[str, Any]]) -> Figure:
    """A row for each kind of privacy: what goes from a silo to the server and to everybody, and who sees what."""
    figure, axes = canvas(920, 96 * len(ways) + 44)
    for place, name in enumerate(("in the silo", "on the way", "at the server", "told to everybody")):
        axes.text(166 + 212 * place, 18, name, ha="center", va="center", color=GREY, fontsize=9)
    for row, way in enumerate(ways):
        top = 96 * row + 36
        for place, (head, text) in enumerate(way["boxes"]):
            noised = head.endswith("*")
            colours = WORKER if noised else STORE if place < 3 else SERVER
            box(axes, (76 + 212 * place, top, 180, 70), colours, head.rstrip("*"), text)
            if place:
                arrow(axes, (76 + 212 * place - 32, top + 35), (76 + 212 * place, top + 35))
        axes.text(12, top + 35, way["name"], ha="left", va="center", color=INK, fontsize=9, weight="bold")
    return figure


def draw(into: Path) -> None:
    """Write all pictures."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fedtorch", "font.family": "DejaVu Sans"})
    source = yaml.safe_load((HERE / "pictures.yaml").read_text())
    figures = {
        "rooms": draw_rooms(rooms_of((HERE.parent / "architecture.md").read_text())),
        "gate": draw_sequence(**source["gate"]),
        "sequence": draw_sequence(**source["sequence"]),
        "update": draw_update(**source["update"]),
        "members": draw_update(**source["members"]),
        "units": draw_units(**source["units"]),
    }
    for name, figure in figures.items():
        figure.savefig(into / f"{name}.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(HERE)
