"""ε of noised scores, by themselves and beside steps, and how many of them a run makes."""

from __future__ import annotations

from typing import Any

import pytest

from fedtorch.privacy.record.terms import HeldOut, SiloTerms, epsilon_of, epsilon_of_counts

pytestmark = pytest.mark.usefixtures("exact_accounts")


def held_out(apart: bool = False, **changes: Any) -> HeldOut:
    usual: dict[str, Any] = {"units": {"dev": 50, "test": 60}, "metrics": ("accuracy",), "every": 1, "on_start": False}
    return HeldOut(10.0, **{**usual, "split": "dev", "final_split": "test", **changes}, apart=apart)


def terms(apart: bool = False, **changes: Any) -> SiloTerms:
    """500 units, batches of 16, 10 rounds of an epoch."""
    return SiloTerms("a", 500, 16, 32, 10, 1.0, 1.0, 1e-4, None, held_out=held_out(apart, **changes))


def test_ten_counts() -> None:
    assert epsilon_of_counts(10.0, {"dev": 4, "test": 6}, 1e-5, apart=False) == pytest.approx(1.1994, abs=1e-3)
    assert epsilon_of_counts(10.0, {"dev": 10, "test": 1}, 1e-5, apart=True) == pytest.approx(1.1994, abs=1e-3)


@pytest.mark.long
def test_a_person_pays_for_steps_and_scores_and_a_row_for_one_of_them() -> None:
    person, row = terms(final_split="dev", every=1, units={"dev": 50}), terms(apart=True)
    ten = {"dev": 10}
    assert person.promised(320, ten) == pytest.approx(3.3233, abs=1e-3)
    assert row.promised(320, ten) == pytest.approx(3.1013, abs=1e-3) == SiloTerms.promised(row, 320, {})
    assert row.promised(1, {**ten, "test": 9}) == row.promised(1, ten) == epsilon_of([(1.0, 10.0, 10)], 1e-4)
    assert epsilon_of(row.all_parts(10), 1e-4) > row.epsilon(10)  # a ledger cannot know that rows were not dealt anew


@pytest.mark.parametrize(
    ("changes", "rounds", "counts"),
    [
        ({}, 10, {"dev": 10, "test": 1}),
        ({}, 3, {"dev": 3}),
        ({"every": 3}, 10, {"dev": 4, "test": 1}),
        ({"every": 3}, 9, {"dev": 3}),
        ({"every": 5}, 10, {"dev": 2, "test": 1}),
        ({"every": 0}, 10, {"test": 1}),
        ({"every": 0, "on_start": True}, 4, {"dev": 1}),
        ({"final_split": "dev", "on_start": True}, 10, {"dev": 12}),
        ({"units": {"test": 9}}, 10, {"test": 1}),
        ({"metrics": ("accuracy", "exact_match"), "every": 4}, 10, {"dev": 6, "test": 2}),
    ],
)
def test_how_many_counts_a_run_makes(changes: dict[str, Any], rounds: int, counts: dict[str, int]) -> None:
    assert terms(**changes).counts_in(rounds) == counts


def test_what_results_say_of_scores() -> None:
    assert "held_out" not in SiloTerms("a", 500, 16, 32, 10, 1.0, 1.0, 1e-4, None).record()
    said = {"units": {"dev": 50, "test": 60}, "metrics": ["accuracy"], "noise_multiplier": 10.0, "apart": False}
    assert terms().record()["held_out"] == said


def test_the_text_of_terms_that_digests_of_trainings_have_in_them_knows_no_scores() -> None:
    assert repr(terms()) == repr(SiloTerms("a", 500, 16, 32, 10, 1.0, 1.0, 1e-4, None))
