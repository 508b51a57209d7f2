from __future__ import annotations

import math

import pytest

from fedtorch.metrics.significance import TTest, paired_t_test


def test_a_paired_t_test_by_hand() -> None:
    # differences 1, 2, 3: mean 2, deviation 1, t = 2 / (1 / sqrt 3); p of a t of 3.4641 at two degrees of freedom
    found = paired_t_test([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    assert (found.t, found.mean_difference, found.count) == (pytest.approx(2 * math.sqrt(3)), 2.0, 3)
    assert found.p == pytest.approx(1 - found.t / math.sqrt(found.t**2 + 2))  # closed form for two degrees


def test_changing_sides_changes_the_sign_only() -> None:
    ours, theirs = [0.2, 0.5, 0.9, 1.0], [0.1, 0.6, 0.5, 0.5]
    there, back = paired_t_test(ours, theirs), paired_t_test(theirs, ours)
    assert back == TTest(pytest.approx(-there.t), pytest.approx(there.p), pytest.approx(-there.mean_difference), 4)


def test_equal_runs_do_not_differ_and_a_constant_difference_is_certain() -> None:
    assert paired_t_test([0.5, 1.0], [0.5, 1.0]) == TTest(0.0, 1.0, 0.0, 2)
    assert paired_t_test([0.0, 0.5], [0.5, 1.0]) == TTest(-math.inf, 0.0, -0.5, 2)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([1.0], [0.0], "1 examples"),
        ([], [], "at least 2"),
        ([1.0, 2.0], [0.0], "2 and 1 values"),
        ([1.0, math.nan], [0.0, 1.0], "finite"),
    ],
)
def test_too_few_or_unusable_values_are_an_error(ours: list[float], theirs: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_t_test(ours, theirs)
