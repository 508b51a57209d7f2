"""The mechanism of rows by itself: when a silo rests, what of a report is told, and what is kept of counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from supervisor import toy_config

from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.privacy.record.level import STEPS, RecordLevel, too_many
from fedtorch.privacy.record.silo import Silo, Training
from fedtorch.privacy.record.terms import SiloTerms, epsilon_of
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import silo_terms

TERMS = SiloTerms("a", 8, 4, 2, 3, 1.0, 0.5, 0.01, None)
CONFIG = PrivacyConfig("record", clip=0.5, noise_multiplier=1.0, delta=0.01, units={"a": 8})


def level(terms: SiloTerms = TERMS, config: PrivacyConfig = CONFIG, kept: tuple[str, ...] = ()) -> RecordLevel:
    """Of one silo that writes nothing."""
    silo = Silo(bytes(32), None)
    return RecordLevel({"a": terms}, config, lambda name: silo, lambda name, split, rows: [(n,) for n in rows], kept)


def trained(round: int, run: str, steps: int = 2, split: str = "") -> Training:
    return Training(run, round, "", 0, f"{run}{round}", f"{run}{round}{split}", steps, 0.5, 1.0, 0.01, split)


def test_a_silo_rests_where_the_next_round_would_pass_its_limit_and_not_where_it_reaches_it() -> None:
    least = epsilon_of([(0.5, 1.0, 4)], 0.01)
    for limit, rests in ((None, False), (least, False), (least - 1e-9, True)):
        found = level(replace(TERMS, max_epsilon=limit))
        found.silo("a").enter(trained(0, found.silo("a").run))
        said = found.rests("a", 1)
        assert ("it rests" in said) == rests == bool(said)
        assert found.rests("a", 0) == ""  # it is done again, and paid for already


def test_only_steps_of_the_same_run_and_round_are_paid_for() -> None:
    limit = epsilon_of([(0.5, 1.0, 2)], 0.01)
    for known, rests in (
        ((0, "", 2, ""), False),
        ((1, "", 2, ""), True),
        ((0, "other", 2, ""), True),
        ((0, "", 2, "dev"), True),
        ((0, "", 1, ""), False),
    ):
        found = level(replace(TERMS, max_epsilon=limit))
        round, run, steps, split = known
        found.silo("a").enter(trained(round, run or found.silo("a").run, steps, split))
        assert bool(found.rests("a", 0)) == rests, known


def test_twice_the_declared_units_are_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(level().work("a", 0, list(range(16)), ["a"]).units) == 16
    with pytest.raises(ConfigError, match=r"client a has 17 units, and privacy\.units declares 8; .* 2 times"):
        level().work("a", 0, list(range(17)), ["a"])
    assert "set privacy.eval.units.a.dev to about 9" in too_many("a", 9, 4, "privacy.eval.units.a.dev")


def test_of_a_report_only_what_is_public_or_noised_is_told() -> None:
    whole = Report("a", "ok", 13, 2, 1.0, 0.5, 1.0, 0.5, 0.7, 3.0, 2.0, 1.5, (1.0,), {"public": 1.0, "loss": 2.0})
    found = level(kept=("public", "missing"))
    assert found.reported(whole) == Report("a", "ok", 8, 2, norm=3.0, max_abs=2.0, extra={"public": 1.0})
    silo = found.silo("a")
    for one in (trained(0, silo.run), trained(1, silo.run), trained(0, "other"), trained(2, silo.run, 1, "dev")):
        silo.enter(one)
    assert found.reported(whole).extra == {"public": 1.0, STEPS: 4.0}
    failed = found.reported(replace(whole, status="failed:ValueError"))
    assert (failed.examples, failed.steps, failed.loss_mean, failed.seconds) == (0, 0, 0.0, 0.0)


def test_counts_and_steps_never_fall_and_a_round_tells_epsilon_and_norms() -> None:
    found, server = level(), ServerState({})
    found.heard("a", {"privacy/counts/dev": 3.0, "other": 9.0}, server)
    found.heard("a", {"privacy/counts/dev": 2.0}, server)
    assert server.numbers == {"privacy/counts/dev/a": 3}
    assert found.told("a") == {}  # nobody has asked for its files here
    ok = Report("a", "ok", 8, 2, norm=3.0, extra={STEPS: 4.0})
    told = found.facts(0, RoundFacts([ok, Report("b", "failed:ValueError", norm=7.0)]), server)
    epsilon = epsilon_of([(0.5, 1.0, 4)], 0.01)
    assert told.figures == {"privacy/epsilon/a": epsilon, "privacy/norm/a": 3.0, "privacy/silos": 1.0}
    assert told.reports is None and told.shown == [("largest ε", f"{epsilon:.4f}")]
    again = found.facts(1, RoundFacts([replace(ok, extra={STEPS: 2.0})]), server)
    assert again.figures["privacy/epsilon/a"] == epsilon and server.numbers["privacy/steps/a"] == 4
    assert level().summary(server)["silos"]["a"]["epsilon"] == epsilon  # another process, from the server's state


def test_what_is_simulated_has_no_epsilon() -> None:
    found, server = level(config=replace(CONFIG, simulate=True, seed=1)), ServerState({})
    told = found.facts(0, RoundFacts([Report("a", extra={STEPS: 4.0})]), server)
    assert "privacy/epsilon/a" not in told.figures and told.shown == [("", "simulated privacy")]
    assert "epsilon" not in found.summary(server)["silos"]["a"]
    silo = found.silo("a")
    silo.enter(trained(1, silo.run, 1, "dev"))
    silo.enter(trained(1, "other", 1, "test"))
    assert found.told("a") == {"privacy/counts/dev": 1.0}


@pytest.mark.parametrize(
    ("client", "steps", "total"),
    [
        ("{batch_size: 4, steps: 5}", 5, 15),
        ("{batch_size: 4, epochs: 1}", 3, 9),  # 9 units, of which the last batch has one
        ("{batch_size: 4, epochs: 2}", 6, 18),
        ("{batch_size: 9, epochs: 1}", 1, 3),
        ("{batch_size: 4, epochs: 2, total_epochs: 4}", 6, 12),
        ("{batch_size: 4, epochs: 1, total_epochs: 9}", 3, 9),
    ],
)
def test_steps_follow_from_declared_units(client: str, steps: int, total: int, tmp_path: Any) -> None:
    privacy = "{kind: record, units: {a: 90, b: 9, c: 90, d: 90}, clip: 0.5, delta: 0.01, noise_multiplier: 1.0}"
    path = toy_config(tmp_path, privacy=privacy, client=client, algorithm="{name: fedavg, weights: declared}")
    found = silo_terms(Plan.of(load(str(path)), 1))["b"]
    assert (found.steps, found.steps_in(3), found.rounds, found.pool, found.honest) == (steps, total, 3, None, 1)
    assert (found.units, found.noise_multiplier, found.clip, found.delta) == (9, 1.0, 0.5, 0.01)


def test_a_batch_of_more_units_than_there_are_is_refused(tmp_path: Any) -> None:
    privacy = "{kind: record, units: {a: 90, b: 9, c: 90, d: 90}, clip: 0.5, delta: 0.01, noise_multiplier: 1.0}"
    path = toy_config(tmp_path, privacy=privacy, client="{batch_size: 10}")
    with pytest.raises(ConfigError, match=r"client\.batch_size is 10 but privacy\.units\.b is 9"):
        silo_terms(Plan.of(load(str(path)), 1))
