"""Intervals are those of scipy."""

from __future__ import annotations

import pytest
from scipy import stats

from fedtorch.metrics.intervals import of_mean, student, wilson


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (1, 1), (3, 7), (7, 7), (0, 24), (506, 1044), (1, 100_000)])
def test_a_shares_interval_is_wilsons(hits: int, count: int) -> None:
    expected = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert wilson(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_seven_of_seven_is_no_certainty() -> None:
    low, high = wilson(7, 7)
    assert low == pytest.approx(7 / (7 + 1.959964**2), abs=1e-6) and high == pytest.approx(1.0, abs=1e-12)


def test_a_shares_interval_stays_within_0_and_1() -> None:
    """Rounding would lead out of it: at 9 of 9 rows, at 0 of 61."""
    assert all(0.0 <= wilson(0, count)[0] < 1e-15 and wilson(count, count)[1] <= 1.0 for count in range(1, 400))


@pytest.mark.parametrize(("hits", "count"), [(0, 0), (3, 2), (-1, 2), (float("nan"), 2)])
def test_what_is_no_share_has_no_interval(hits: float, count: int) -> None:
    with pytest.raises(ValueError, match="is no share of rows"):
        wilson(hits, count)


@pytest.mark.parametrize("degrees", [*range(1, 13), 20, 40, 1000])
def test_students_quantile_is_scipys(degrees: int) -> None:
    assert student(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=1e-5)


@pytest.mark.parametrize("degrees", [11, 20, 40, 100])
def test_what_the_expansion_leaves_out_is_of_the_fifth_order(degrees: int) -> None:
    assert 0.72 < (stats.t.ppf(0.975, degrees) - student(degrees)) * degrees**5 < 0.82


def test_a_means_interval_is_students() -> None:
    values = [0.9583, 1.0, 1.0]
    expected = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    assert of_mean(values) == pytest.approx(expected, abs=1e-7)
    assert of_mean([0.5]) is None and of_mean([0.5, 0.5]) is None
