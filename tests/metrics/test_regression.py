"""Errors and correlations of numbers are scikit-learn's and scipy's, and say nothing where there is nothing to say."""

from __future__ import annotations

import random
import warnings

import pytest
from scipy import stats
from sklearn import metrics

from fedtorch.metrics.correlation import moments, pearson
from fedtorch.metrics.regression import figures, sums

RANDOM = random.Random(3)
TRUE = [RANDOM.gauss(3.0, 1.5) for _ in range(60)]
FOUND = [value * 0.7 + RANDOM.gauss(1.0, 0.5) for value in TRUE]


def added(*parts: dict[str, float]) -> dict[str, float]:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


@pytest.mark.parametrize("cuts", [(60,), (1, 60), (7, 20, 60)])
def test_figures_of_clients_sums_are_those_of_all_rows(cuts: tuple[int, ...]) -> None:
    starts = (0, *cuts[:-1])
    found = figures(added(*(sums(TRUE[a:b], FOUND[a:b]) for a, b in zip(starts, cuts))))
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(TRUE, FOUND), rel=1e-12)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(TRUE, FOUND), rel=1e-12)
    assert found["r2"] == pytest.approx(metrics.r2_score(TRUE, FOUND), rel=1e-12)
    assert found["pearson"] == pytest.approx(stats.pearsonr(TRUE, FOUND).statistic, rel=1e-12)


@pytest.mark.parametrize("constant", [0.0, 0.1, -3.3, 1e6 + 0.1])
@pytest.mark.parametrize("count", [2, 7, 1000])
def test_where_all_true_values_are_equal_there_is_no_r2_and_no_correlation(constant: float, count: int) -> None:
    """0.1 summed seven times is not seven times 0.1: what is left of rounding is no spread."""
    found = figures(sums([constant] * count, [constant + (i % 3) for i in range(count)]))
    assert "r2" not in found and found["pearson"] == 0.0 and found["mae"] > 0


@pytest.mark.parametrize("constant", [0.1, 1e6 + 0.1])
def test_constant_predictions_have_no_correlation_and_an_r2(constant: float) -> None:
    true = [constant + i for i in range(5)]
    found = figures(sums(true, [constant] * 5))
    assert found["pearson"] == 0.0
    assert found["r2"] == pytest.approx(metrics.r2_score(true, [constant] * 5), abs=1e-3)


def test_one_row_has_errors_and_nothing_else() -> None:
    assert figures(sums([0.1], [0.4])) == {"rmse": pytest.approx(0.3), "mae": pytest.approx(0.3), "pearson": 0.0}
    assert figures({}) == {} and figures(sums([], [])) == {}


def test_a_spread_a_thousand_times_smaller_than_the_mean_is_one() -> None:
    true, found = [1000 + value for value in TRUE], [1000 + value for value in FOUND]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pearson(moments(true, found)) == pytest.approx(stats.pearsonr(TRUE, FOUND).statistic, rel=1e-8)
        assert figures(sums(true, found))["r2"] == pytest.approx(metrics.r2_score(true, found), rel=1e-8)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e200])
def test_a_model_that_diverged_has_no_figures(wrong: float) -> None:
    found = figures(sums([1.0, 2.0, 4.0], [wrong, 2.0, 4.0]))
    assert found["pearson"] == 0.0 and "r2" not in found and "rmse" not in found
