"""ε against published and independently computed values."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec, module_from_spec

import numpy as np
import pytest

from fedtorch.privacy.accounting import PRECISION, Accountant, least_noise, total_epsilon
from fedtorch.privacy.settings import LEAST_NOISE

pytestmark = pytest.mark.usefixtures("exact_accounts")

DELTA = 1e-5


@pytest.mark.long
def test_epsilon_of_every_round_of_a_schedule() -> None:
    """dp-accounting's own PLD accountant, q 0.1, z 1; RDP gives 7.9039 for the last."""
    account = Accountant(0.1, 1.0, DELTA)
    expected = {0: 0.0, 1: 1.6845, 5: 2.3541, 10: 2.8545, 25: 3.8969, 50: 5.1483, 100: 7.0466}
    assert {count: round(account.epsilon(count), 4) for count in expected} == expected
    assert account.releases_within(3.0, 100) == 11
    assert account.epsilon(11) <= 3 < account.epsilon(12)
    assert account.releases_within(1.0, 100) == 0 and account.releases_within(8.0, 100) == 100


@pytest.mark.long
@pytest.mark.parametrize(("rate", "z", "rounds", "expected"), [(1.0, 1.0, 1, 4.3772), (0.2, 0.8, 60, 16.6293)])
def test_epsilon_of_other_schedules(rate: float, z: float, rounds: int, expected: float) -> None:
    """The first is the analytic Gaussian mechanism (4.377178)."""
    assert Accountant(rate, z, DELTA).epsilon(rounds) == pytest.approx(expected, abs=6e-5)


def test_many_releases_are_rounded_up_and_not_down() -> None:
    account = Accountant(1.0, 50.0, DELTA)
    assert account.epsilon(1025) == account.epsilon(1028) > account.epsilon(1024)


@pytest.mark.long
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


def replaced(q: float, z: float, releases: int, delta: float) -> float:
    """ε of neighbours of whom one has a client that sends +C and the other one that sends −C, by FFT, rounded up."""
    step, fine, size = 1e-4, 1e-4, 1 << 19
    x = np.arange(-16 * z - 2, 16 * z + 2, fine)
    normal = [np.exp(-((x - mean) ** 2) / (2 * z * z)) / (z * math.sqrt(2 * math.pi)) for mean in (0, 1, -1)]
    plus, minus = ((1 - q) * normal[0] + q * other for other in normal[1:])
    places = np.ceil(np.log(plus / minus) / step).astype(int)
    one = np.zeros(size)
    np.add.at(one, places % size, plus * fine)
    all_of = np.fft.irfft(np.fft.rfft(one) ** releases, size)
    losses = (np.arange(size) + size // 2) % size - size // 2
    found, above = 0.0, 50.0
    for _ in range(50):
        middle = (found + above) / 2
        rest = float((all_of * np.clip(1 - np.exp(middle - losses * step), 0, None)).sum())
        found, above = (middle, above) if rest > delta else (found, middle)
    return above


@pytest.mark.long
def test_replacing_a_client_costs_more_than_leaving_it_out_and_at_most_both_steps_together() -> None:
    """The figures of docs/privacy.md: a pair of neighbours from below, (2 ε, (1 + e^ε) δ) from above."""
    assert replaced(1.0, 1.0, 1, DELTA) == pytest.approx(Accountant(1.0, 0.5, DELTA).epsilon(1), abs=1e-3)
    left_out = Accountant(0.1, 1.0, DELTA).epsilon(50)
    assert replaced(0.1, 1.0, 50, DELTA) == pytest.approx(7.19, abs=0.01)
    assert (2 * left_out, (1 + math.exp(left_out)) * DELTA) == pytest.approx((10.30, 1.73e-3), rel=2e-3)
    least = 3.7246e-9
    both = Accountant(0.1, 1.0, least).epsilon(50)
    assert (1 + math.exp(both)) * least == pytest.approx(DELTA, rel=1e-3) and 2 * both == pytest.approx(15.79, abs=0.01)


def test_nothing_is_looked_for_below_the_noise_that_an_account_takes_minutes_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def epsilon(account: Accountant, releases: int) -> float:
        asked.append(account.noise_multiplier)
        return 1.0 / account.noise_multiplier

    monkeypatch.setattr(Accountant, "epsilon", epsilon)
    assert least_noise(50.0, 0.5, 1, DELTA) == min(asked) == LEAST_NOISE
    assert least_noise(4.0, 0.5, 1, DELTA) == pytest.approx(0.25, rel=2 * PRECISION)


def test_the_distribution_of_a_release_is_made_once_for_each_of_several_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round asks for ε of all silos, whose rates differ."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    found = find_spec("fedtorch.privacy.accounting")
    assert found is not None and found.loader is not None
    own = module_from_spec(found)  # tests share what accountants find; this one remembers by itself alone
    monkeypatch.setitem(sys.modules, found.name, own)  # where its dataclass looks
    found.loader.exec_module(own)
    made: list[float] = []
    one = pld.from_gaussian_mechanism(2.0, value_discretization_interval=0.01, sampling_prob=0.5)
    monkeypatch.setattr(pld, "from_gaussian_mechanism", lambda z, sampling_prob, **_: made.append(sampling_prob) or one)
    for round in (1, 2):
        for silo in range(1, own.DISTRIBUTIONS + 1):
            assert own.total_epsilon([(silo / 100, 2.0, round)], 1e-3) > 0
    assert len(made) == own.DISTRIBUTIONS == len(set(made)) > 8
