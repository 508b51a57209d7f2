"""Rounds with client-level privacy in one process: what is summed, noised, divided, told and kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import SGD, make_runner
from private_runs import TASK, private
from scipy import stats
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.sums import why_not_private
from fedtorch.config.schema import EvalConfig
from fedtorch.core.errors import BudgetError, CheckpointError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import CLIP
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.privacy.client_level import ClientLevel, PrivacyTerms
from fedtorch.privacy.clip import bound, exponent_of
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.settings import AdaptiveClip, MovingClip
from fedtorch.privacy.stream import Stream, add_noise, chosen, derived
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.setup.mechanism import make_mechanism
from fedtorch.train.job import ClientJob


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key after the other, the same in every run of the tests."""
    numbers = count()
    monkeypatch.setattr(
        "fedtorch.privacy.ledger.os.urandom", lambda size: sha256(b"%d" % next(numbers)).digest()[:size]
    )


def ledger_of(folder: Path) -> Ledger:
    return Ledger.open(folder / "privacy")


def test_a_round_is_the_sum_of_clipped_updates_with_noise_over_a_fixed_number(tmp_path: Path) -> None:
    """Redone by hand from the key: who is drawn, Δ_i = w − w_i, k_i, S, and w − S 2^-e / (qN)."""
    runner = make_runner(private(tmp_path, rounds=1))
    start = runner.components.engine.initial_shared.clone()
    runner.run()
    key, exponent = ledger_of(tmp_path).key, exponent_of(0.5, 20)
    places = chosen(Stream(derived(key, "cohort", 0)), 20, 0.3)
    assert 0 < len(places) < 20
    total = torch.zeros(3, dtype=torch.float64)
    for place in places:
        _, optimum, _ = list(TASK.clients.values())[place]
        update = 0.1 * (start - optimum)  # one full-batch step
        bound(update, 0.5, exponent)
        total += update.double() * 2.0**exponent
    whole = total.numpy()
    add_noise(whole, 0.5 * 2.0**exponent, Stream(derived(key, "noise", 0, 0)))
    expected = start - torch.from_numpy(whole * 2.0**-exponent / 6.0).float()
    assert torch.allclose(runner.context.server.weights, expected, atol=1e-6)


@pytest.mark.parametrize("width", [5000, pytest.param(333_334, marks=pytest.mark.slow)])
def test_weights_that_nobody_trains_are_noise_of_the_promised_size(width: int, tmp_path: Path) -> None:
    """lr 0: after T rounds w − w^0 is Σ noise: normal (chi-square over 50 bins), of deviation z C √T / (qN)."""
    task = replace(TASK, width=width)
    runner = make_runner(private(tmp_path, task=task, rounds=4, client=replace(SGD, lr=1e-30)))
    start = runner.components.engine.initial_shared.clone()
    runner.run()
    moved = (runner.context.server.weights - start).double()
    assert len(moved) == 3 * width  # 10^6 of them in the slow case
    expected = 1.0 * 0.5 * math.sqrt(4) / (0.3 * 20)
    assert float(moved.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * len(moved)))
    assert abs(float(moved.mean())) < 4 * expected / math.sqrt(len(moved))
    counts = np.histogram(stats.norm.cdf(moved.numpy() / expected), bins=50, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_an_empty_cohort_is_a_round_like_any_other(tmp_path: Path) -> None:
    runner = make_runner(private(tmp_path, rate=1e-9, rounds=3, privacy={"noise_multiplier": 0.5}))
    start = runner.components.engine.initial_shared.clone()
    result = runner.run()
    assert result.rounds == 3 and [r.round for r in ledger_of(tmp_path).releases] == [0, 1, 2]
    assert not torch.equal(runner.context.server.weights, start)


def test_a_client_that_fails_or_sends_nan_adds_nothing(tmp_path: Path) -> None:
    """The same sum as if they had not been drawn: the denominator stays."""
    names = list(TASK.clients)
    sick = replace(TASK, bad=(names[3],), poison=(names[7],))
    healthy = replace(TASK, clients={**TASK.clients, names[3]: (0.0, 0.0, 3), names[7]: (0.0, 0.0, 3)})
    weights = []
    for index, task in enumerate((sick, healthy)):
        config = private(tmp_path / str(index), task=task, rate=1.0, rounds=1, privacy={"simulate": True, "seed": 3})
        runner = make_runner(config)
        runner.run()
        weights.append(runner.context.server.weights)
    assert torch.equal(*weights)


def test_a_simulation_is_a_function_of_its_seed_and_promises_nothing(tmp_path: Path) -> None:
    digests = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        result = make_runner(private(tmp_path / name, privacy={"simulate": True, "seed": seed})).run()
        digests.append(result.digest)
        assert result.privacy["simulated"] and "epsilon" not in result.privacy
        assert not (tmp_path / name / "privacy").exists()
    assert digests[0] == digests[1] != digests[2]


def test_two_runs_of_one_config_have_other_noise(tmp_path: Path) -> None:
    first, second = (make_runner(private(tmp_path / name)).run().digest for name in "ab")
    assert first != second


def test_the_run_ends_before_the_round_that_would_pass_the_budget_and_goes_on_with_more(tmp_path: Path) -> None:
    whole = make_runner(private(tmp_path / "whole", rounds=4))
    allowed = whole.run().privacy["epsilon"]
    account = whole.context.mechanism.account  # type: ignore[attr-defined]
    assert allowed == account.epsilon(4)
    budget = (account.epsilon(2) + account.epsilon(3)) / 2
    config = private(tmp_path / "run", rounds=4, privacy={"max_epsilon": budget})
    runner = make_runner(config)
    with pytest.raises(
        BudgetError, match="round 3 would be release 3 and come to epsilon .*larger privacy.max_epsilon"
    ):
        runner.run()
    assert runner.context.round == runner.saving.saved == 2 and len(ledger_of(tmp_path / "run").releases) == 2
    again = make_runner(replace(config, privacy=replace(config.privacy, max_epsilon=100.0)))
    assert again.run(resume=2).rounds == 4
    assert len(ledger_of(tmp_path / "run").releases) == 4


def test_a_round_that_is_done_again_has_the_same_noise_and_is_no_second_release(tmp_path: Path) -> None:
    config = private(tmp_path, rounds=3)
    first = make_runner(replace(config, checkpoint=replace(config.checkpoint, every=1, keep=3)))
    digest = first.run().digest
    releases = ledger_of(tmp_path).releases
    assert make_runner(config).run(resume=1).digest == digest
    assert ledger_of(tmp_path).releases == releases and len(releases) == 3


def test_a_round_that_is_done_again_with_another_sum_has_other_noise_and_is_one_more_release(tmp_path: Path) -> None:
    config = private(tmp_path, rounds=2, rate=1.0, task=replace(TASK, width=100))
    config = replace(config, checkpoint=replace(config.checkpoint, every=1))
    first = make_runner(config)
    first.run()
    weights = first.context.server.weights.clone()
    other = make_runner(replace(config, client=replace(SGD, lr=0.11)))
    result = other.run(resume=1)
    releases = ledger_of(tmp_path).releases
    assert [(r.round, r.attempt) for r in releases] == [(0, 0), (1, 0), (1, 1)]
    assert result.privacy["releases"] == 3
    # the same noise would leave a difference of some 0.01
    assert float((other.context.server.weights - weights).abs().max()) > 0.05


def test_the_clip_moves_as_the_paper_says(tmp_path: Path) -> None:
    """All of 20 clients are drawn and none is clipped: b̄ is about 1, C shrinks by exp(−0.2 · 0.5) a round."""
    clip = MovingClip(AdaptiveClip(start=100.0, bit_noise=0.6))
    config = private(tmp_path, rate=1.0, rounds=3, privacy={"clip": clip})
    runner = make_runner(config)
    runner.run()
    assert runner.context.server.numbers[CLIP] == pytest.approx(100 * math.exp(-0.3), rel=0.05)


def test_the_noise_of_a_round_is_that_of_its_own_clip_and_not_of_the_next_one(tmp_path: Path) -> None:
    """Nobody trains, so no update is clipped and C shrinks by a tenth a round; z_delta = 1 / √(1 − 1/1.44) = 1.809."""
    clip = MovingClip(AdaptiveClip(start=1.0, bit_noise=0.6))
    task = replace(TASK, width=5000)
    config = private(tmp_path, task=task, rate=1.0, rounds=2, client=replace(SGD, lr=1e-30), privacy={"clip": clip})
    runner = make_runner(replace(config, checkpoint=replace(config.checkpoint, every=1, keep=2)))
    weights, clips = [runner.components.engine.initial_shared.clone()], [1.0]
    real = runner._one_round

    def one_round() -> None:
        real()
        weights.append(runner.context.server.weights.clone())
        clips.append(runner.context.server.numbers[CLIP])

    runner._one_round = one_round  # type: ignore[method-assign]
    runner.run()
    assert clips[1] < 0.95 and clips[2] < 0.95 * clips[1]
    for before, after, own in zip(weights, weights[1:], clips, strict=False):
        deviation = own * (1 - 1 / 1.44) ** -0.5 / 20
        assert float((after - before).std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(after)))


@pytest.mark.parametrize("change", [{"clip": 0.6}, {"noise_multiplier": 2.0}, {"delta": 1e-4}], ids=str)
def test_a_promise_cannot_be_changed_on_the_way(tmp_path: Path, change: dict[str, float]) -> None:
    make_runner(private(tmp_path)).run()
    (name,) = change
    with pytest.raises(CheckpointError, match=rf"another promise: {name} was .* and is now .*--resume never"):
        make_runner(private(tmp_path, privacy=change))


def test_neither_can_the_rate_or_the_number_of_clients(tmp_path: Path) -> None:
    make_runner(private(tmp_path)).run()
    with pytest.raises(CheckpointError, match="rate was 0.3 and is now 0.4"):
        make_runner(private(tmp_path, rate=0.4))
    fewer = replace(TASK, clients=dict(list(TASK.clients.items())[1:]))
    with pytest.raises(CheckpointError, match="clients was 20 and is now 19"):
        make_runner(private(tmp_path, task=fewer))


def test_a_state_of_another_key_or_with_releases_that_the_ledger_lacks_is_refused(tmp_path: Path) -> None:
    config = private(tmp_path)
    make_runner(replace(config, checkpoint=replace(config.checkpoint, every=1))).run()
    kept = (tmp_path / "privacy" / "key").read_bytes()
    (tmp_path / "privacy" / "key").write_bytes(bytes(32))
    with pytest.raises(CheckpointError, match="another key"):
        make_runner(config).run(resume=2)
    (tmp_path / "privacy" / "key").write_bytes(kept)
    path = tmp_path / "privacy" / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(CheckpointError, match="no release of round 2"):
        make_runner(config).run(resume=2)


def test_reports_and_records_say_nothing_of_who_took_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sick = replace(TASK, bad=tuple(list(TASK.clients)[:10]))
    seen: list[object] = []

    class Tracks:
        def round(self, *args: object, **kwargs: object) -> None:
            seen.extend([args, kwargs])

        def working(self, text: str) -> None:
            seen.append(text)

        def end(self, *args: object) -> None:
            pass

    with caplog.at_level("DEBUG"):
        runner = make_runner(private(tmp_path, task=sick, rate=0.9, rounds=1), tracker=Tracks())
        result = runner.run()
    said = [caplog.text, repr(seen), repr(result)]
    assert "(hidden)" in caplog.text
    assert not [name for name in TASK.clients for text in said if name in text]
    round, facts = seen[-2]  # type: ignore[misc]
    epsilon = result.privacy["epsilon"]
    shown = [("ε", f"{epsilon:.5g}"), ("δ", "0.001")]
    assert (round, facts) == (0, RoundFacts(None, figures={"privacy/epsilon": epsilon}, shown=shown))


def test_revealed_losses_are_one_number_per_round(tmp_path: Path) -> None:
    runner = make_runner(private(tmp_path, rounds=1, rate=1.0, privacy={"reveal": ("losses",)}))
    mechanism = runner.context.mechanism
    result = runner.run()
    assert "the mean training loss" in str(result.privacy["outside"])
    reports = [Report("a", examples=1, loss_mean=1.0), Report("b", examples=3, loss_mean=3.0)]
    facts = mechanism.facts(0, RoundFacts(reports), ServerState({}))
    assert facts.reports is None and facts.loss == 2.5


def test_a_branch_of_another_run_has_a_key_of_its_own(tmp_path: Path) -> None:
    config = private(tmp_path / "first")
    make_runner(replace(config, checkpoint=replace(config.checkpoint, every=1, keep=3))).run()
    second = build(private(tmp_path / "second", client=replace(SGD, lr=0.2)), num_ranks=1, rank=0)
    found = tmp_path / "first" / "checkpoints" / "round_000002"
    mechanism = make_mechanism(second, is_server=True, start=2, resume=str(found))
    assert isinstance(mechanism, ClientLevel)
    first, own = ledger_of(tmp_path / "first"), ledger_of(tmp_path / "second")
    assert own.key != first.key and own.releases == first.releases[:2]


class Spy(ClientLevel):
    """Keeps the sum as it was before noise."""

    taken: torch.Tensor

    def release(self, round: int, total: torch.Tensor, server: Any, places: Any) -> torch.Tensor:
        self.taken = total.clone()
        return super().release(round, total, server, places)


def test_neighbours_differ_by_no_more_than_the_clip(tmp_path: Path) -> None:
    """One client replaced: the sums before noise differ by two k, each of a norm of at most C·2^e, in integers."""
    sums = []
    for task in (TASK, replace(TASK, clients={**TASK.clients, "client_0": (1e4, 50.0, 3)})):
        runner = make_runner(private(tmp_path / str(len(sums)), task=task, rate=1.0, rounds=1))
        spy = Spy(runner.context.mechanism.terms, runner.context.mechanism.ledger)  # type: ignore[attr-defined]
        runner.context.mechanism = spy
        runner.run()
        sums.append(spy.taken)
    assert all(torch.equal(total, total.round()) for total in sums)
    difference = [int(a) - int(b) for a, b in zip(*sums, strict=True)]
    assert 0 < sum(d * d for d in difference) <= 4 * 0.25 * 4 ** exponent_of(0.5, 20)  # replaced: twice the clip


def test_terms_say_what_is_divided_by(tmp_path: Path) -> None:
    config = private(tmp_path)
    assert PrivacyTerms(0.1, 1000, 1.0, config.privacy).expected == 100.0
    assert isinstance(make_runner(config), Runner) and why_not_private(FedAvg(weights="equal")) == ""


@dataclass(frozen=True)
class FirstNumberOnly(FedAvg):
    """Of the weights only the first number travels, as where a factor of an adapter rests."""

    def places(self, way: str, layout: Layout, client: str, round: int) -> Places | None:
        return Places(torch.tensor([0]), layout.size) if way == "sent" else None

    def client_update(self, job: ClientJob) -> Report:
        curve = job.train(job.received["weights"])
        job.send("weights", torch.cat([job.received["weights"][:1] - job.engine.snapshot()[:1], torch.zeros(2)]))
        return self.report(job, curve)


def test_what_does_not_travel_gets_no_noise(tmp_path: Path) -> None:
    runner = make_runner(private(tmp_path, FirstNumberOnly(weights="equal"), rounds=2))
    start = runner.components.engine.initial_shared.clone()
    runner.run()
    moved = runner.context.server.weights - start
    assert float(moved[0]) != 0 and moved[1:].tolist() == [0.0, 0.0]


@dataclass(frozen=True)
class WithPublicRows(Quadratic):
    """The last entry is held-out rows that belong to nobody who trains."""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        found = dict(super().manifest())
        *_, last = found
        return found | {last: {"dev": 3, "test": 3}}

    def load(self, client: str, split: str) -> Sequence[Any]:
        a, b, _ = self.clients[client]
        return [(a, b)] * 3


@pytest.mark.parametrize("reveal", [(), ("scores",)], ids=["hidden", "revealed"])
def test_only_rows_without_an_owner_are_evaluated_and_choose(reveal: tuple[str, ...], tmp_path: Path) -> None:
    task = WithPublicRows(clients=TASK.clients, start=TASK.start, double=False)
    config = private(tmp_path, task=task, eval=EvalConfig(every=1), privacy={"reveal": reveal})
    result = make_runner(config).run()
    assert len(result.scores) == (20 if reveal else 1) and "client_19" in result.scores
    assert result.best_round in (1, 2, 3)
    assert ("clients' scores" in str(result.privacy["outside"])) == bool(reveal)


def test_a_run_that_died_before_its_first_checkpoint_goes_on_with_its_key(tmp_path: Path) -> None:
    """What it released it would else release again with other noise; only `--resume never` makes a new key."""
    built = build(private(tmp_path), num_ranks=1, rank=0)
    keys = []
    for resume in ("auto", "auto", "never"):
        mechanism = make_mechanism(built, is_server=True, start=None, resume=resume)
        assert isinstance(mechanism, ClientLevel) and mechanism.ledger is not None
        keys.append(mechanism.ledger.key)
    assert keys[0] == keys[1] != keys[2]
    elsewhere = make_mechanism(built, is_server=False)
    assert isinstance(elsewhere, ClientLevel) and elsewhere.ledger is None


def test_a_checkpoint_without_its_key_is_refused(tmp_path: Path) -> None:
    built = build(private(tmp_path), num_ranks=1, rank=0)
    with pytest.raises(CheckpointError, match=r"privacy/key, the key of this run's noise, cannot be read"):
        make_mechanism(built, is_server=True, start=2)
