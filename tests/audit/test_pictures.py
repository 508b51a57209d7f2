"""Pictures of an audit lie inside their axes."""

from __future__ import annotations

import re

import pytest

from fedtorch.audit.membership import roc
from fedtorch.audit.pictures import bars, curve, histogram
from fedtorch.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("members", "others"), [([0.0, 1.0], [2.0, 3.0]), ([2.0, 3.0], [0.0, 1.0]), ([1.0], [1.0]), ([1.0, 5.0], [2.0])]
)
def test_the_curve_of_an_attack_stays_off_the_edges_it_runs_along(members: list[float], others: list[float]) -> None:
    """A perfect attack's curve is the left edge and the upper one: on the frame nobody would see it."""
    text = curve(roc(members, others), "held-out rows", "training rows")
    lines = re.findall(r'<polyline points="([^"]+)"', text)
    assert len(lines) == 2  # chance, and the attack
    for line in lines:
        for point in line.split():
            x, y = map(float, point.split(","))
            assert LEFT < x < WIDTH - RIGHT and TOP < y < HEIGHT - BOTTOM
    (x, y) = re.findall(r'<text x="(\d+)" y="(\d+)">training rows', text)[0]
    assert int(y) < TOP  # above the axis that it names, not below the other one


def test_a_mark_at_the_right_end_has_its_name_on_the_left() -> None:
    text = histogram([0.0, 1.0, 2.0], {"first": -1.0, "last": 3.0}, "bits")
    sides = dict(re.findall(r'text-anchor="(\w+)">(?=(first|last))', text.replace("\n", "")))
    assert sides == {"start": "first", "end": "last"}


def test_bars_of_shares_have_an_axis_to_one_and_others_their_own() -> None:
    row = {"channel": "update", "client": "a", "found": 0.5, "exposure": 12.0, "right": None}
    assert ">1</text>" in bars([row], "found", "right") and ">1</text>" not in bars([row], "exposure")
