"""Charts of a page at places that a reader can redo."""

from __future__ import annotations

import re

import pytest

from fedtorch.report.groups import Band
from fedtorch.report.svg import BAR, BOTTOM, HEIGHT, LEFT, ROW, TOP, WIDTH, bar_chart, line_chart, ticks


def points(chart: str) -> list[str]:
    return re.findall(r'<polyline points="([^"]*)"', chart)


def test_a_curve_goes_from_corner_to_corner_of_its_range() -> None:
    assert (WIDTH, HEIGHT, LEFT, BOTTOM, TOP) == (620, 320, 64, 40, 12)
    chart = line_chart({"a": Band([1, 3], [2.0, 4.0], [0.0, 0.0])}, "loss")
    assert points(chart) == ["64.0,280.0 608.0,12.0"] and "<polygon" not in chart
    both = line_chart({"a": Band([1, 3], [2.0, 3.0], [0.0, 1.0]), "b": Band([2], [3.0], [0.0])}, "loss")
    assert points(both) == ["64.0,280.0 608.0,146.0", "336.0,146.0"]
    assert '<polygon points="64.0,280.0 608.0,12.0 608.0,280.0 64.0,280.0"' in both  # up to 4 and down to 2
    assert "<title>a, round 3: 3 ± 1</title>" in both and "<title>a, round 1: 2</title>" in both
    assert line_chart({"a": Band([], [], [])}, "loss") == ""


def test_a_curve_of_one_value_has_a_range_above_it() -> None:
    chart = line_chart({"a": Band([1], [2.0], [0.0])}, "loss")
    assert points(chart) == ["64.0,280.0"] and ">4</text>" in chart and ">0</text>" not in chart
    assert ">1</text>" in line_chart({"a": Band([1], [0.0], [0.0])}, "loss")


def test_bars_begin_at_nothing_and_stand_below_each_other() -> None:
    assert (ROW, BAR) == (8, 9)
    chart = bar_chart({"c": [(2.0, 0.0), None], "d": [(1.0, 0.5), (3.0, 0.0)]}, ["one", "two"])
    bars = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="8" fill="([^"]*)"', chart)
    assert [bar[:3] for bar in bars] == [("170.0", "0", "260.0"), ("170.0", "26", "130.0"), ("170.0", "35", "390.0")]
    assert bars[1][3] != bars[2][3] == "#d95f02" and f'viewBox="0 0 620 {26 * 2 + 36 + 10}"' in chart
    assert chart.count('class="error"') == 1 and "M235.0 30.5H365.0" in chart  # 0.5 to 1.5
    below = bar_chart({"c": [(-1.0, 0.0)], "d": [(2.0, 0.0)]}, ["one"])
    assert re.findall(r'<rect x="([^"]*)" y="[^"]*" width="([^"]*)" height="8"', below) == [
        ("170.0", "130.0"),
        ("300.0", "260.0"),
    ]
    assert bar_chart({"c": [None]}, ["one"]) == ""


def test_ticks_are_halves_where_nobody_asks_for_whole_numbers() -> None:
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0]) and ticks(0, 1, whole=True) == [0, 1]
    assert ticks(0, 2.5) == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5]) and ticks(0, 0.55) == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    )
