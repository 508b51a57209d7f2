"""The steps of client-level privacy one by one, without a run: figures that can be redone by hand."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedtorch.core.client import Client
from fedtorch.core.errors import BudgetError, CheckpointError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import CLIP, NOISE_KEY
from fedtorch.core.update import Report
from fedtorch.privacy.adaptive import moved, noised_count
from fedtorch.privacy.client_level import HIDDEN, UNCLIPPED, ClientLevel, PrivacyTerms
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.noise import ADD
from fedtorch.privacy.public_sum import Masking
from fedtorch.privacy.release import Release
from fedtorch.privacy.secure_sum.openings import Openings
from fedtorch.privacy.settings import AdaptiveClip, MovingClip, PrivacyConfig
from fedtorch.privacy.stream import Stream, add_noise, chosen, derived

KEY = bytes(range(32))
FIXED = PrivacyConfig(kind="client", clip=0.5, noise_multiplier=1.0, delta=1e-3)
RULE = AdaptiveClip(start=0.5, bit_noise=0.6)
MOVING = replace(FIXED, clip=MovingClip(RULE))


def level(settings: PrivacyConfig = FIXED, **known: Any) -> ClientLevel:
    """Of 12 clients of which a third takes part: qN = 4."""
    terms = PrivacyTerms(1 / 3, 12, 1.0, settings)
    return ClientLevel(terms, Ledger(KEY, terms.record(3) | known, None, []))


def server(*weights: float, **numbers: float) -> ServerState:
    return ServerState({"weights": torch.tensor(weights)}, numbers=dict(numbers))


def test_numbers_that_a_promise_rests_on() -> None:
    assert level().terms.expected == pytest.approx(4.0) and level().least(3) == 0
    found = PrivacyTerms(0.1, 20, 2.0, FIXED).record(3)
    assert found == {"rate": 0.1, "clients": 20, "noise_multiplier": 2.0, "delta": 1e-3, "clip": 0.5,
                     "adaptive": None, "epsilon": None, "noise": None}  # fmt: skip
    other = replace(MOVING, noise="discrete", noise_multiplier=None, epsilon=2.0)
    more = {name: PrivacyTerms(0.1, 20, 2.0, other).record(3)[name] for name in ("adaptive", "epsilon", "noise")}
    assert more == {"adaptive": [0.5, 0.2, 0.6], "epsilon": [2.0, 3], "noise": "discrete"}


def test_the_noise_of_a_number_in_steps() -> None:
    """z C 2^e with C = 1/2 and e = 33; beside a noisy count z is (1 − 1/1.44)^-½."""
    assert (level().exponent, level().deviation) == (33, 2.0**32)
    assert level(MOVING).deviation == pytest.approx((1 - 1 / 1.44) ** -0.5 * 2.0**32, rel=1e-12)


@pytest.mark.parametrize(("length", "unclipped"), [(0.25, 1.0), (0.5, 1.0), (0.75, 0.0)])
def test_an_update_says_whether_it_was_clipped(length: float, unclipped: float) -> None:
    update = torch.tensor([length, 0.0], dtype=torch.float64)
    report = level().outgoing(update, Report("a", extra={"x": 1.0}))
    assert report.extra == {"x": 1.0, UNCLIPPED: unclipped}
    assert float(update[0]) == pytest.approx(min(length, 0.5), rel=1e-6)


def test_a_report_tells_what_is_needed_or_revealed() -> None:
    given = Report("a", examples=7, loss_mean=2.0, extra={UNCLIPPED: 1.0, "x": 1.0})
    assert level().reported(given) == Report("a") and level().shown("a") == HIDDEN
    assert level(MOVING).reported(given) == Report("a", extra={UNCLIPPED: 1.0})
    assert level(MOVING).reported(replace(given, status="failed", extra={})) == Report("a", status="failed")
    told = replace(FIXED, reveal=("losses",))
    assert level(told).reported(given) == Report("a", examples=7, loss_mean=2.0)
    assert (level().shows_losses, level().shows_scores, level(told).shows_losses) == (False, False, True)
    assert level(replace(FIXED, reveal=("scores",))).shows_scores


def noised(numbers: list[float], deviation: float) -> np.ndarray[Any, Any]:
    whole = np.array(numbers)
    add_noise(whole, deviation, Stream(derived(KEY, "noise", 0, 0)))
    return whole


@pytest.mark.parametrize("settings", [FIXED, MOVING], ids=["fixed", "moving"])
def test_a_release_is_the_sum_with_noise_over_qn_and_moves_the_clip(settings: PrivacyConfig) -> None:
    """Three were not clipped, one was: Σ (2 b_i − 1) = 2."""
    rule, state = level(settings), server(0.0, 0.0)
    state.accepted = [Report(str(i), extra={UNCLIPPED: float(i > 0)}) for i in range(4)]
    rule.enter(rule.begin(0, state))
    total = torch.tensor([8.0e9, -4.0e9], dtype=torch.float64)
    found = rule.release(0, total.clone(), state, None)
    expected = noised(total.tolist(), rule.deviation) * 2.0**-33 / 4
    assert found.dtype == torch.float32 and found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert state.accepted == [] and state.numbers[NOISE_KEY] == rule.ledger.check  # type: ignore[union-attr]
    count = noised_count(2, 0.6, Stream(derived(KEY, "count", 0, 0)))
    clip = {CLIP: moved(0.5, RULE, count, 4.0)} if settings is MOVING else {}
    assert {name: state.numbers[name] for name in state.numbers if name == CLIP} == pytest.approx(clip, rel=1e-12)
    facts = rule.facts(0, RoundFacts(None), ServerState({}))
    assert ("privacy/clip" in facts.figures) == (settings is MOVING)


def test_of_places_only_those_get_noise() -> None:
    rule, state = level(), server(0.0, 0.0, 0.0)
    total = torch.tensor([0.0, 6.0e9, 0.0], dtype=torch.float64)
    found = rule.release(0, total, state, Places(torch.tensor([1]), 3))
    (expected,) = noised([6.0e9], rule.deviation) * 2.0**-33 / 4
    assert found.tolist() == [0.0, pytest.approx(expected, rel=1e-6), 0.0]


def test_noise_of_a_first_attempt_is_drawn_meanwhile_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def noted(total: Any, deviation: float, stream: Stream) -> None:
        drawn.append(threading.current_thread().name)

    monkeypatch.setitem(ADD, "normal", noted)  # type: ignore[misc]
    rule = level()
    rule.expect(0, 2)
    rule.release(0, torch.tensor([1.0, 2.0], dtype=torch.float64), server(0.0, 0.0), None)
    assert drawn == ["noise"]
    other = torch.tensor([1.0, 3.0], dtype=torch.float64)
    rule.expect(0, 2)
    assert rule.release(0, other.clone(), server(0.0, 0.0), None) is None  # with that noise nothing else may leave
    rule.begin(0, server(0.0, 0.0))
    rule.expect(0, 2)
    assert rule._noise._for[2] == 1
    rule.release(0, other, server(0.0, 0.0), None)
    assert set(drawn) == {"noise"}


def test_another_sum_of_a_round_does_not_leave_and_the_next_attempt_has_a_cohort_and_noise_of_its_own() -> None:
    rule, state = level(), server(0.0, **{CLIP: 0.25})
    clients = [Client(str(i), i) for i in range(1000)]
    assert rule.may_withhold and rule.begin(0, state) == {"clip": 0.25}
    rule.enter({"clip": 0.25})
    assert (rule.exponent, rule.deviation) == (34, 2.0**32)  # z · 0.25 · 2^34
    sums = [torch.tensor([float(number)], dtype=torch.float64) for number in (1, 2)]
    first = rule.release(0, sums[0].clone(), state, None)
    cohort = rule.draw(clients, 0)
    rule.begin(0, state)  # done again
    assert rule.draw(clients, 0) == cohort
    assert torch.equal(rule.release(0, sums[0].clone(), state, None), first)  # type: ignore[arg-type]
    left = sums[1].clone()
    assert rule.release(0, left, state, None) is None and left.tolist() == [2.0]
    assert [(r.attempt, r.digest == "") for r in rule.ledger.releases] == [(0, False), (1, True)]  # type: ignore[union-attr]
    rule.begin(0, state)
    other = rule.draw(clients, 0)
    assert other == [clients[i] for i in chosen(Stream(derived(KEY, "cohort", 0, 1)), 1000, 1 / 3)] != cohort
    second = rule.release(0, sums[1].clone(), state, None)
    assert second is not None and first is not None
    assert float((second - first).abs()) > 1e-3  # with the same noise it would be 2^-34 / 4
    assert len(rule.ledger.releases) == 2  # type: ignore[union-attr]


def test_a_secure_sum_is_told_which_attempt_it_is_of() -> None:
    rule = level()
    rule.masking = Masking(0.7, Openings(None))
    for attempt in range(3):
        rule.begin(0, server(0.0))
        assert rule.masking.attempt == attempt
        rule.ledger.enter(0, attempt, "a")  # type: ignore[union-attr]
        rule.ledger.renew(0)  # type: ignore[union-attr]


def test_a_moving_clip_has_noise_of_its_own_on_its_count_in_each_attempt() -> None:
    rule, state = level(MOVING), server(0.0)
    for attempt in range(2):
        rule.begin(0, server(0.0))
        assert rule.release(0, torch.tensor([float(attempt)], dtype=torch.float64), state, None) is None or not attempt
    rule.begin(0, server(0.0))
    assert rule.release(0, torch.tensor([1.0], dtype=torch.float64), state, None) is not None
    count = noised_count(0, 0.6, Stream(derived(KEY, "count", 0, 1)))
    assert state.numbers[CLIP] == pytest.approx(moved(0.5, RULE, count, 4.0), rel=1e-12)


def test_a_budget_is_for_as_many_releases_as_it_says() -> None:
    limit = level().account.epsilon(1)
    rule, state = level(replace(FIXED, max_epsilon=limit)), server(0.0)
    rule.begin(0, state)
    rule.release(0, torch.tensor([1.0], dtype=torch.float64), state, None)
    with pytest.raises(BudgetError, match="round 2 would be release 2 .* so far comes to"):
        rule.begin(1, state)
    rule.begin(0, state)
    with pytest.raises(BudgetError, match="round 1 would be release 2 "):  # another sum of the same round
        rule.release(0, torch.tensor([2.0], dtype=torch.float64), state, None)
    rule.begin(0, state)  # what comes to the same sum costs nothing
    rule.release(0, torch.tensor([1.0], dtype=torch.float64), state, None)
    assert len(rule.ledger.releases) == 1  # type: ignore[union-attr]


def test_a_state_of_another_key_is_refused_but_where_a_branch_begins() -> None:
    other = server(0.0, **{NOISE_KEY: 1.0})
    for known, round in (({}, 1), ({"since": 2}, 3)):
        with pytest.raises(CheckpointError, match=f"the state after round {round} was made with another key"):
            level(**known).begin(round, other)
    level(since=2).begin(2, other)
    level().begin(0, other)


def test_a_state_with_releases_that_the_ledger_lacks_is_refused(tmp_path: Any) -> None:
    rule = level()
    for rounds, missing in (((0, 2), 2), ((1,), 1), ((), 1)):
        rule.ledger = Ledger(KEY, {}, tmp_path, [Release(round, 0, "") for round in rounds])
        with pytest.raises(CheckpointError, match=f"no release of round {missing}, but the state is of 3 rounds"):
            rule.begin(3, server(0.0))
    rule.ledger = Ledger(KEY, {}, tmp_path, [Release(round, 0, "") for round in (0, 1, 2)])
    assert rule.begin(3, server(0.0)) == {"clip": 0.5}


def test_losses_that_are_revealed_are_the_mean_over_the_rows_of_clients_that_did_not_fail() -> None:
    told, all_of = level(replace(FIXED, reveal=("losses",))), Report("c", status="failed", examples=9, loss_mean=50.0)
    reports = [Report("a", examples=1, loss_mean=1.0), Report("b", examples=3, loss_mean=3.0), all_of]
    assert (
        told.facts(0, RoundFacts(reports), ServerState({})).loss == 2.5
        and level().facts(0, RoundFacts(reports), ServerState({})).loss is None
    )
    for nobody in ((), None, [all_of]):
        assert told.facts(0, RoundFacts(nobody), ServerState({})).loss is None


def test_what_is_said_at_the_end() -> None:
    simulated = level(replace(MOVING, simulate=True, seed=1)).summary(ServerState({}))
    assert simulated["simulated"] and simulated["clip"] == "adaptive" and "epsilon" not in simulated
    assert level(replace(FIXED, simulate=True, seed=1)).facts(0, RoundFacts(None), ServerState({})).figures == {}
    said = level().summary(ServerState({}))
    assert (said["epsilon"], said["releases"], said["clip"], said["simulated"]) == (0.0, 0, 0.5, False)
    assert level().settled(0) is None and len(level().outside) == 3
    assert len(level(replace(FIXED, reveal=("losses", "sizes"))).outside) == 5


def test_a_rank_without_the_ledger_neither_draws_nor_accounts() -> None:
    elsewhere = ClientLevel(PrivacyTerms(0.5, 4, 0.0, FIXED), None)
    with pytest.raises(AssertionError, match="only the server"):
        elsewhere.draw([], 0)
    assert math.isfinite(elsewhere.exponent)
