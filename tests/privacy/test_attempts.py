"""A round that is done again with another sum: each attempt has a cohort and noise of its own, as it is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_runner
from private_runs import TASK, private
from watched import watched

from fedtorch.config.schema import ClientConfig
from fedtorch.privacy.accounting import Accountant, total_epsilon
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.release import Release

pytestmark = pytest.mark.usefixtures("exact_accounts")  # who is drawn follows from the noise that an ε allows


def test_attempts_on_one_cohort_would_cost_more_than_as_many_on_cohorts_of_their_own() -> None:
    """k releases on one draw are one with noise z/√k. Ten attempts at each of 100 rounds are stated as 2.12."""
    account, together = Accountant(0.01, 1.0, 1e-6), Accountant(0.01, 10**-0.5, 1e-6)
    assert account.epsilon_of({1: 1000}) == account.epsilon(1000) == pytest.approx(2.1245, abs=1e-3)
    assert account.epsilon_of({10: 100}) == pytest.approx(27.5100, abs=1e-3)
    assert account.epsilon_of({10: 100}) == pytest.approx(together.epsilon(100), rel=1e-9)
    assert account.epsilon_of({1: 99, 10: 1}) == pytest.approx(11.5163, abs=1e-3) and account.epsilon_of({}) == 0.0


def test_an_account_counts_releases_by_their_draw_of_the_cohort() -> None:
    """Seven attempts of a version that kept the cohort, a round that was released once, and two attempts of today."""
    old = [Release(0, attempt, "a", 0) for attempt in range(7)]
    new = [Release(1, 0, "b"), Release(2, 0, "c"), Release(2, 1, "d", 1)]
    ledger = Ledger(bytes(32), {}, None, [*old, *new])
    assert ledger.spent == {7: 1, 1: 3}
    account = Accountant(0.2, 1.0, 1e-5)
    assert account.epsilon_of(ledger.spent) == pytest.approx(total_epsilon([(0.2, 1.0, 3), (0.2, 7**-0.5, 1)], 1e-5))
    assert account.epsilon_of(ledger.spent) > 2 * account.epsilon(10)


@pytest.mark.long
def test_seven_attempts_have_seven_draws_of_the_cohort_and_seven_noises(tmp_path: Path) -> None:
    config = private(tmp_path, rounds=2, rate=0.5, task=replace(TASK, width=20))
    config = replace(config, checkpoint=replace(config.checkpoint, every=1, keep=3))
    make_runner(config).run()
    drawn: list[tuple[str, ...]] = []
    noises: list[torch.Tensor] = []
    for attempt in range(1, 8):
        runner, spy = watched(replace(config, client=replace(SGD, lr=0.1 + 0.01 * attempt)))
        result = runner.run(resume=1)
        assert len(spy.drawn) == 2 and len(spy.noises) == 1  # the last one's cohort once more, then a new one
        assert result.privacy["releases"] == 2 + attempt
        drawn, noises = drawn + spy.drawn[1:], noises + spy.noises
    releases = Ledger.open(tmp_path / "privacy").releases
    assert [(r.round, r.attempt) for r in releases] == [(0, 0), *((1, attempt) for attempt in range(8))]
    assert len(set(drawn)) == 7
    apart = [float((one - other).abs().min()) for place, one in enumerate(noises) for other in noises[:place]]
    assert min(apart) > 0


@pytest.mark.long
def test_nothing_of_a_training_whose_sum_does_not_leave_is_kept(tmp_path: Path) -> None:
    """Clients keep their optimiser: those of the withheld cohort alone are as they were, the others one round on.

    They are so many that of two cohorts neither is within the other but once in millions of runs.
    """
    client = ClientConfig(optimizer="adamw", lr=0.1, batch_size=1000, optimizer_state="keep")
    many = replace(TASK, clients={f"client_{i}": (1.0, i / 30 - 1, 3 + i % 3) for i in range(60)})
    config = private(tmp_path, rounds=1, rate=0.5, client=client, task=many)
    config = replace(config, checkpoint=replace(config.checkpoint, every=1, keep=3))
    make_runner(config).run()
    runner, spy = watched(replace(config, rounds=2, client=replace(client, lr=0.2)))
    ledger = runner.context.mechanism.ledger  # type: ignore[attr-defined]
    assert ledger.enter(1, 0, "another sum")
    before = {}

    def remember() -> None:
        before.update({name: runner.context.store.get(name) for name in runner.context.store.clients()})

    spy.meanwhile = remember
    runner.run(resume=1)
    withheld, counted = map(set, spy.drawn)
    assert withheld - counted and counted - withheld and len(spy.noises) == 1
    for name in many.clients:
        now, then = runner.context.store.get(name), before.get(name)
        if name in counted:
            assert steps_of(now) == (0 if then is None else steps_of(then)) + 1
        else:
            assert not now.tensors if then is None else steps_of(now) == steps_of(then)


def steps_of(state: Any) -> float:
    """Of the optimiser that a client keeps, one a round."""
    return float(state.tensors["train/optimizer/w/step"])
