"""PIR and APIR with worked figures, and the rules for a base of zero."""

from __future__ import annotations

import math

import pytest

from fedtorch.metrics.apir import Comparison, compare, pir

BASE = {
    "1": {"a": 0.5, "b": 0.2, "c": 0.0},
    "2": {"a": 0.4, "b": 0.0, "c": -0.2},
    "3": {"a": 0.8},
    "4": {"a": 0.25, "b": 0.1},
}
NEW = {
    "1": {"a": 0.65, "b": 0.2, "c": 0.0},
    "2": {"a": 0.3, "b": 0.1, "c": 0.1},
    "3": {"a": 0.84},
    "4": {"a": 0.5, "b": 0.05},
}


def test_the_specifications_figures() -> None:
    found = compare(BASE, NEW)
    assert [found.client_apir[c] for c in "1234"] == pytest.approx([0.1, 0.625, 0.05, 0.25], abs=1e-12)
    assert found.apir == pytest.approx(0.25625, abs=1e-12) and found.pooled == pytest.approx(0.2625, abs=1e-12)
    assert (found.win, found.lose, found.tie, found.undefined, found.pairs) == (5, 2, 2, 1, 9)
    assert found.rates["2"]["b"] is None


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [(0.0, 0.00004, 0.0), (0.00004, 0.3, None), (0.0, -0.3, None), (-0.2, 0.1, 1.5), (-0.2, -0.3, -0.5)],
)
def test_zero_and_negative_bases(base: float, new: float, expected: float | None) -> None:
    assert pir(base, new) == (None if expected is None else pytest.approx(expected))


def test_a_client_without_a_defined_rate_is_left_out_of_the_mean() -> None:
    found = compare({"x": {"a": 0.0}, "y": {"a": 0.5}}, {"x": {"a": 0.1}, "y": {"a": 1.0}})
    assert (found.client_apir["x"], found.apir, found.win) == (None, 1.0, 2)
    assert math.isnan(compare({"x": {"a": 0.0}}, {"x": {"a": 0.1}}).apir)


def test_runs_over_different_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="client 3, task a has a score in only one"):
        compare(BASE, {k: v for k, v in NEW.items() if k != "3"})


def test_where_nothing_is_compared_nothing_is_counted() -> None:
    assert (Comparison().pairs, Comparison().undefined) == (0, 0)
    assert compare({}, {}).pairs == 0
