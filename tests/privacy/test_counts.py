"""Noise on counts: how much, what it costs, and that no number leaves twice with another one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

pytest.importorskip("cryptography")

from fedtorch.core.errors import UpdateError
from fedtorch.core.update import Report
from fedtorch.privacy.counts import EXPONENT, CountsLevel, CountTerms, NoisedCounts
from fedtorch.privacy.record.silo import Silo, parts_of
from fedtorch.privacy.record.terms import epsilon_of

pytestmark = pytest.mark.usefixtures("exact_accounts")
CELLS = [(slice(0, 10_000), 1), (slice(10_000, 20_000), 4)]


def terms(z: float = 1.0, honest: int | None = None, limit: float | None = None, noise: str = "normal") -> CountTerms:
    return CountTerms(z, honest, 1e-5, limit, "row", noise, (2, 2, 2))


def noised(
    silo: Silo, about: CountTerms, value: float = 0.0, round: int = 0, facts: tuple[bytes, ...] = ()
) -> np.ndarray:
    numbers = np.full(20_001, value)
    NoisedCounts(silo, about, round, CELLS, facts).release(numbers)
    return numbers


@pytest.mark.long
def test_epsilon_of_a_histogram_and_of_a_unit_in_two_cells() -> None:
    assert terms().epsilon(1) == pytest.approx(4.377, abs=5e-4)
    # two cells at the same deviation are one release with z / √2, and √2 more noise makes up for them
    assert epsilon_of([(1.0, 1 / math.sqrt(2), 1)], 1e-5) == pytest.approx(6.573, abs=5e-4)
    assert terms().deviation(2) == pytest.approx(math.sqrt(2) * 2**EXPONENT)
    assert terms().epsilon(2) == pytest.approx(epsilon_of([(1.0, 1 / math.sqrt(2), 1)], 1e-5), abs=1e-4)
    assert terms(honest=4).deviation(1) == pytest.approx(2**EXPONENT / 2)


@pytest.mark.parametrize(("honest", "noise"), [(None, "normal"), (3, "normal"), (None, "discrete")])
def test_variance_of_the_noise(tmp_path: Path, honest: int | None, noise: str) -> None:
    found = noised(Silo.open(tmp_path / "silo", "run"), terms(1.5, honest, noise=noise), value=7.0)
    for part, most in CELLS:
        variance = 1.5**2 * most / (honest or 1)
        statistic = float(((found[part] - 7.0) ** 2).sum() / variance)
        assert chi2.ppf(1e-5, 10_000) < statistic < chi2.ppf(1 - 1e-5, 10_000)
    assert found[20_000] == 7.0  # no cell of a table
    assert np.array_equal(found[:20_000] * 2**EXPONENT, np.rint(found[:20_000] * 2**EXPONENT))


def test_the_same_numbers_have_the_same_noise_and_are_one_release(tmp_path: Path) -> None:
    silo, again = (Silo.open(tmp_path / "silo", run) for run in ("one run", "another run"))
    first, second = noised(silo, terms(), 3.0), noised(again, terms(), 3.0)
    assert np.array_equal(first, second)
    assert parts_of(again.trainings()) == [(1.0, 1.0, 2)] and len(again.trainings()) == 2
    for other in (noised(again, terms(), 4.0) - 1.0, noised(again, terms(), 3.0, round=1)):
        assert (first[:20_000] == other[:20_000]).sum() < 20  # of multiples of 2^-20, which meet by chance
    assert parts_of(again.trainings()) == [(1.0, 1.0, 6)]


def test_a_share_differs_where_others_take_part(tmp_path: Path) -> None:
    silo = Silo.open(tmp_path / "silo", "run")
    all_three, two = (noised(silo, terms(honest=2), facts=names) for names in ((b"a", b"b", b"c"), (b"a", b"b")))
    assert (all_three[:20_000] == two[:20_000]).sum() < 20


def test_tables_that_were_not_asked_for_stay_zero_and_cost_nothing(tmp_path: Path) -> None:
    silo, numbers = Silo.open(tmp_path / "silo", "run"), np.zeros(20_001)
    NoisedCounts(silo, terms(), 0, CELLS, ()).release(numbers, unasked={1})
    assert not numbers[10_000:].any() and numbers[:10_000].all()
    assert parts_of(silo.trainings()) == [(1.0, 1.0, 1)]
    assert [(one.purpose, one.attempt, one.split) for one in silo.trainings()] == [("counts", 0, "")]
    NoisedCounts(silo, terms(), 1, CELLS, ()).release(numbers, unasked={0, 1})
    assert parts_of(silo.trainings()) == [(1.0, 1.0, 1)]


def level(folder: Path, about: CountTerms, run: str = "run") -> CountsLevel:
    return CountsLevel(
        about,
        ("north",),
        lambda client: Silo.open(folder / client, run),
        lambda client, rows: [(at,) for at in range(len(rows))],
        lambda client, round: CELLS,
        None,
    )


def test_a_silo_rests_before_its_ledger_would_pass_the_limit(tmp_path: Path) -> None:
    whole = terms().epsilon(6)
    assert level(tmp_path, terms(limit=whole)).rests("north", 0) == ""
    assert "come to epsilon" in level(tmp_path, terms(limit=whole - 0.01)).rests("north", 0)
    one = level(tmp_path, terms(limit=whole))
    noised(one.silo("north"), one.terms, 1.0)
    assert one.rests("north", 0) == one.rests("north", 1) == ""  # what has left is not paid twice
    other = level(tmp_path, terms(limit=whole), "another run")
    assert "come to epsilon" in other.rests("north", 0)  # the ledger is that of the rows, whatever run


def test_a_report_tells_nothing_of_rows_and_counts_that_cannot_be_added_are_refused(tmp_path: Path) -> None:
    import torch

    one = level(tmp_path, terms())
    assert not one.shows_scores and not one.shows_losses and one.needs_homes and one.public_exponent == 20
    said = one.reported(Report("north", examples=36, steps=9, loss_first=1.0, norm=5.0, max_abs=2.0, seconds=3.0))
    assert said == Report("north", examples=1, steps=1)
    with pytest.raises(UpdateError, match="too large"):
        one.outgoing(torch.full((2,), 2.0**32, dtype=torch.float64), said)
    with pytest.raises(UpdateError, match="too large"):
        one.outgoing(torch.tensor([float("nan")], dtype=torch.float64), said)
