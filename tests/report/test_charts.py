"""Charts of a page at places that a reader can redo."""

from __future__ import annotations

import math
import re

import pytest

from fedtorch.report.groups import Band
from fedtorch.report.svg import (
    BAR,
    BOTTOM,
    COLORS,
    HEIGHT,
    LEFT,
    NAMES,
    RIGHT,
    ROW,
    TOP,
    WIDTH,
    bar_chart,
    line_chart,
    ticks,
)


def points(chart: str) -> list[str]:
    return re.findall(r'<polyline points="([^"]*)"', chart)


def numbers(chart: str) -> tuple[list[str], list[str]]:
    """Those below and beside a chart."""
    found = (re.findall(rf'text-anchor="{anchor}">(-?[0-9][^<]*)<', chart) for anchor in ("middle", "end"))
    below, beside = found
    return below, beside


def test_a_curve_goes_from_side_to_side_with_some_room_above_and_below() -> None:
    assert (WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM) == (400, 250, 52, 14, 24, 36)  # so 334 wide and 190 high
    chart = line_chart({"a": Band([1, 3], [2.0, 4.0], [0.0, 0.0])}, "loss")
    # a twenty-fifth of the range lies above and below: of 190, 190 * 0.04 / 1.08 are 7.0 each
    assert points(chart) == ["52.0,207.0 386.0,31.0"] and "<polygon" not in chart and "legend" not in chart
    both = line_chart({"a": Band([1, 3], [2.0, 3.0], [0.0, 1.0]), "b": Band([2], [3.0], [0.0])}, "loss")
    assert points(both) == ["52.0,207.0 386.0,119.0", "219.0,119.0"]
    assert '<polygon points="52.0,207.0 386.0,31.0 386.0,207.0 52.0,207.0"' in both  # up to 4 and down to 2
    assert "<title>a, round 3: 3 ± 1</title>" in both and "<title>a, round 1: 2</title>" in both
    assert re.findall(r'<i style="([^"]*)"></i>(.)<', both) == [
        ("border-top:3px solid #1f77b4", "a"),
        ("border-top:3px solid #d95f02", "b"),
    ]
    assert line_chart({"a": Band([], [], [])}, "loss") == ""
    assert line_chart({"a": Band([1], [math.nan], [0.0])}, "loss") == ""


def test_a_curve_of_one_value_has_half_of_it_above_and_below() -> None:
    chart = line_chart({"a": Band([1], [2.0], [0.0])}, "loss")
    assert points(chart) == ["52.0,119.0"] and numbers(chart) == (["1", "2"], ["1", "1.5", "2", "2.5", "3"])
    below = line_chart({"a": Band([1], [-2.0], [0.0])}, "loss")
    assert points(below) == ["52.0,119.0"] and numbers(below)[1] == ["-3", "-2.5", "-2", "-1.5", "-1"]
    assert numbers(line_chart({"a": Band([1], [0.0], [0.0])}, "loss"))[1] == ["-1", "-0.5", "0", "0.5", "1"]


@pytest.mark.parametrize("value", [0.0, 0.98, 1.0])
def test_the_axis_of_a_share_that_never_changes_has_what_a_share_can_be(value: float) -> None:
    chart = line_chart({"a": Band([1, 2], [value, value], [0.0, 0.0])}, "accuracy", bounds=(0.0, 1.0))
    assert numbers(chart)[1] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert points(chart) == [f"52.0,{214 - 190 * value:.1f} 386.0,{214 - 190 * value:.1f}"]


def test_an_axis_may_begin_at_0_and_bands_end_where_values_do() -> None:
    band = {"a": Band([1, 2], [0.5, 1.0], [0.0, 0.25])}
    whole = line_chart(band, "accuracy", bounds=(0.0, 1.0), from_zero=True)
    # up to 1, and 0.02 more: 214 - 190 * 0.5 / 1.02
    assert points(whole) == ["52.0,120.9 386.0,27.7"]
    assert '<polygon points="52.0,120.9 386.0,27.7 386.0,74.3 52.0,120.9"' in whole
    assert line_chart(band, "accuracy").count("<polygon") == 1 and line_chart(band, "accuracy") != whole
    # what is below 0 is shown all the same
    assert points(line_chart({"a": Band([1, 2], [-1.0, 1.0], [0.0, 0.0])}, "x", from_zero=True)) == [
        "52.0,214.0 386.0,31.3"
    ]


def test_chosen_rounds_have_a_line_each_and_a_ring_where_the_curve_has_them() -> None:
    bands = {"a": Band([1, 2, 3], [2.0, 3.0, 4.0], [0.0] * 3)}
    chart = line_chart(bands, "loss", chosen={"a": [3, 2, 2, 0, 4]})
    line = '<path d="M{}V214" stroke="#1f77b4" class="chosen"/>'
    assert re.findall(r"<path d=[^>]*>", chart) == [line.format("219.0 24"), line.format("386.0 24")]
    assert re.findall(r'<circle cx="([^"]*)" cy="([^"]*)" r="5.5"', chart) == [("219.0", "119.0"), ("386.0", "31.0")]
    assert "chosen round</span>" in chart and "</i>a<" not in chart  # one curve without a band has its name above it
    everybodys = line_chart(bands, "loss", chosen={"": [1, 3, 4]})
    assert everybodys.count('stroke="currentColor" class="chosen"') == 2 and 'r="5.5"' not in everybodys
    assert "chosen round</span>" in everybodys and "chosen" not in line_chart(bands, "loss", chosen={"a": []})


def test_the_eleventh_curve_has_the_first_colour_and_dashes() -> None:
    chart = line_chart({str(n): Band([1], [float(n)], [0.0]) for n in range(31)}, "loss")
    looks = re.findall(r'stroke="([^"]*)" stroke-width="1.8" stroke-dasharray="([^"]*)"', chart)
    assert looks[9:12] == [(COLORS[9], ""), (COLORS[0], "6 3"), (COLORS[1], "6 3")]
    assert looks[20] == (COLORS[0], "2 3") and looks[30] == (COLORS[0], "")
    marks = re.findall(r'<i style="border-top:3px (\w+) ([^"]*)">', chart)
    assert marks[9:11] == [("solid", COLORS[9]), ("dashed", COLORS[0])] and marks[20] == ("dotted", COLORS[0])


def test_points_of_up_to_59_rounds_have_a_circle_with_their_numbers() -> None:
    for rounds, circles in ((59, 59), (60, 0)):
        band = Band(list(range(rounds)), [float(n) for n in range(rounds)], [0.0] * rounds)
        assert line_chart({"a": band}, "loss").count("<circle") == circles


def test_bars_begin_at_nothing_and_stand_below_each_other() -> None:
    assert (NAMES, ROW, BAR) == (128, 9, 10)  # so 258 are left for the longest bar
    chart = bar_chart({"c": [(2.0, 2.0, 2.0), None], "d": [(1.0, 0.5, 1.5), (3.0, 3.0, 3.0)]}, ["one", "two"])
    bars = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="9" fill="([^"]*)"', chart)
    assert [bar[:3] for bar in bars] == [
        ("128.0", "4.5", "172.0"),
        ("128.0", "33.5", "86.0"),
        ("128.0", "43.5", "258.0"),
    ]
    assert bars[1][3] != bars[2][3] == "#d95f02" and f'viewBox="0 0 400 {29 * 2 + 4 + 36}"' in chart
    assert chart.count('class="error"') == 1 and "M171.0 38H257.0M171.0 35v6M257.0 35v6" in chart  # 0.5 to 1.5
    assert '<text x="122" y="18.5" text-anchor="end">c<' in chart and "d, one: 1 (0.5 to 1.5)<" in chart
    assert "c, one: 2<" in chart and '<path class="grid" d="M128.0 0V62"/>' in chart and 'y="92"' in chart
    assert re.findall(r"<i[^>]*></i>(\w+)<", chart) == ["one", "two"]
    below = bar_chart({"c": [(-1.0, -1.0, -1.0)], "d": [(2.0, 2.0, 2.0)]}, ["one"])
    assert re.findall(r'<rect x="([^"]*)" y="[^"]*" width="([^"]*)" height="9"', below) == [
        ("128.0", "86.0"),
        ("214.0", "172.0"),
    ]
    assert "legend" not in below and bar_chart({"c": [None]}, ["one"]) == ""


def test_bars_of_shares_are_on_an_axis_up_to_1_and_those_of_nothing_have_one_too() -> None:
    share = bar_chart({"c": [(0.5, 0.5, 0.5)]}, ["one"], is_share=True)
    assert 'width="129.0"' in share and ">1</text>" in share
    nothing = bar_chart({"c": [(0.0, 0.0, 0.0)]}, ["one"])
    assert 'width="0.0"' in nothing and ">1</text>" in nothing
    # the axis goes as far as what is known of the largest bar
    assert 'width="129.0"' in bar_chart({"c": [(1.0, 0.0, 2.0)]}, ["one"])
    assert '<rect x="257.0"' in bar_chart({"c": [(0.0, -1.0, 1.0)]}, ["one"])


def test_a_long_name_is_cut_where_the_bars_begin() -> None:
    chart = bar_chart({"a" * 19: [(1.0, 1.0, 1.0)], "b" * 20: [(1.0, 1.0, 1.0)]}, ["one"])
    assert f">{'a' * 19}<title>{'a' * 19}</title>" in chart and f">{'b' * 18}…<title>{'b' * 20}</title>" in chart


def test_ticks_are_halves_where_nobody_asks_for_whole_numbers() -> None:
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0]) and ticks(0, 1, whole=True) == [0, 1]
    assert ticks(0, 2.5) == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5]) and ticks(0, 0.55) == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    )
