"""ε against published and independently computed values."""

from __future__ import annotations

import pytest

from fedtorch.privacy.accounting import PRECISION, Accountant, least_noise, total_epsilon

DELTA = 1e-5


def test_epsilon_of_every_round_of_a_schedule() -> None:
    """dp-accounting's own PLD accountant, q 0.1, z 1; RDP gives 7.9039 for the last."""
    account = Accountant(0.1, 1.0, DELTA)
    expected = {0: 0.0, 1: 1.6845, 5: 2.3541, 10: 2.8545, 25: 3.8969, 50: 5.1483, 100: 7.0466}
    assert {count: round(account.epsilon(count), 4) for count in expected} == expected
    assert account.releases_within(3.0, 100) == 11
    assert account.epsilon(11) <= 3 < account.epsilon(12)
    assert account.releases_within(1.0, 100) == 0 and account.releases_within(8.0, 100) == 100


@pytest.mark.parametrize(("rate", "z", "rounds", "expected"), [(1.0, 1.0, 1, 4.3772), (0.2, 0.8, 60, 16.6293)])
def test_epsilon_of_other_schedules(rate: float, z: float, rounds: int, expected: float) -> None:
    """The first is the analytic Gaussian mechanism (4.377178)."""
    assert Accountant(rate, z, DELTA).epsilon(rounds) == pytest.approx(expected, abs=6e-5)


def test_many_releases_are_rounded_up_and_not_down() -> None:
    account = Accountant(1.0, 50.0, DELTA)
    assert account.epsilon(1025) == account.epsilon(1028) > account.epsilon(1024)


def test_the_least_noise_for_an_epsilon() -> None:
    z = least_noise(2.0, 0.1, 100, DELTA)
    assert 2.24771 < z < 2.24773
    assert Accountant(0.1, z, DELTA).epsilon(100) <= 2 < Accountant(0.1, z * (1 - 3 * PRECISION), DELTA).epsilon(100)


def test_releases_of_several_kinds_add_up() -> None:
    """Two of one kind in two parts are two of that kind; kinds without releases count nothing."""
    assert total_epsilon([], DELTA) == 0.0 == total_epsilon([(1.0, 4.0, 0)], DELTA)
    alone, both = (Accountant(1.0, 4.0, DELTA).epsilon(count) for count in (1, 2))
    assert total_epsilon([(1.0, 4.0, 1), (0.5, 3.0, 0)], DELTA) == alone
    assert total_epsilon([(1.0, 4.0, 1), (1.0, 4.0, 1)], DELTA) == pytest.approx(both, rel=1e-6) and both > alone
