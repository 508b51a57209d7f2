"""`client.lr_over_rounds`: a learning rate for every round, by its formula, and seen by all that read the rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.load import load
from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.planning.dry_run import describe
from fedtorch.rounds.checkpointing import digest
from fedtorch.setup.build import build
from fedtorch.tasks.base import SERVER
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import RateOverRounds

TASK = Quadratic(clients={"a": (1.0, 3.0, 4), "b": (0.5, -2.0, 6)}, start=(0.1, 0.2), noise=0.3)
CLIENT = replace(SGD, batch_size=2)
FALLING = RateOverRounds("cosine", 0.01)


# --- the formula


@pytest.mark.parametrize(
    ("round", "rate"),
    # 1e-6 + 4.9e-5 · (1 + cos(πt/200))/2; half way (5e-5 + 1e-6)/2; the last one is a step above the minimum
    [(0, 5e-5), (1, 4.999697780e-5), (50, 4.282411613e-5), (100, 2.55e-5), (199, 1.003022199e-6), (200, 1e-6)],
)
def test_the_rates_of_openfedllm_over_200_rounds_by_hand(round: int, rate: float) -> None:
    hp = ClientConfig(lr=5e-5, lr_over_rounds=RateOverRounds("cosine", 1e-6))
    assert hp.in_round(round, 200).lr == pytest.approx(rate, rel=1e-9)


def test_a_line_falls_by_the_same_amount_in_every_round_and_a_constant_not_at_all() -> None:
    line = ClientConfig(lr=1.0, lr_over_rounds=RateOverRounds("linear", 0.2))
    assert [line.in_round(t, 4).lr for t in range(5)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2], abs=1e-15)
    flat = ClientConfig(lr=0.3, lr_over_rounds=RateOverRounds("constant"))
    assert {flat.in_round(t, 4).lr for t in range(5)} == {0.3}


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_a_rate_is_never_below_the_minimum_and_a_rounds_settings_name_no_schedule_over_rounds(rounds: int) -> None:
    hp = ClientConfig(lr=0.1, lr_over_rounds=RateOverRounds("cosine", 0.1 / 3))
    for t in range(rounds + 2):
        now = hp.in_round(t, rounds)
        assert 0.1 / 3 <= now.lr <= 0.1 and now == replace(hp, lr=now.lr, lr_over_rounds=None)


# --- runs


def run(folder: Path, algorithm: Algorithm, client: ClientConfig, rates: Sequence[float] = (), **changes: Any) -> str:
    """The digest after three rounds. rates: set by hand before each of them."""
    config = make_config(folder, TASK, algorithm, client=client, rounds=3, **changes)
    runner = make_runner(config)
    runner._share_initial_weights()
    for round in range(3):
        if rates:
            runner.context.config = replace(config, client=replace(client, lr=rates[round]))
        runner._one_round()
    return digest(runner.context)


BY_HAND = [0.01 + 0.5 * (0.1 - 0.01) * (1 + math.cos(math.pi * t / 3)) for t in range(3)]
CASES: dict[str, tuple[Algorithm, ClientConfig, dict[str, Any]]] = {
    "fedavg": (FedAvg(), CLIENT, {}),
    "kept optimiser": (FedAvg(), replace(CLIENT, optimizer="adam", optimizer_state="keep"), {}),
    "schedule within": (FedAvg(), replace(CLIENT, schedule="linear", warmup_ratio=0.25, epochs=3), {}),
    "adafactor": (FedAvg(), replace(CLIENT, optimizer="adafactor"), {}),
    "scaffold": (Scaffold(), CLIENT, {}),
    "fednova": (FedNova(mu=0.5), CLIENT, {}),
    "feddyn": (FedDyn(alpha=0.1), CLIENT, {}),
    "pfedme": (PFedMe(), CLIENT, {}),
    "ditto": (Ditto(lam=0.5), CLIENT, {}),
    "ditto with a rate of its own below the minimum": (Ditto(lam=0.5, personal_lr=0.001), CLIENT, {}),
    "local": (Local(), CLIENT, {"paradigm": "local"}),
    "centralized": (FedAvg(), CLIENT, {"paradigm": "centralized"}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_run_has_the_bits_of_one_whose_rates_are_set_by_hand(name: str, tmp_path: Path) -> None:
    algorithm, client, changes = CASES[name]
    falling = run(tmp_path / "key", algorithm, replace(client, lr_over_rounds=FALLING), **changes)
    assert falling == run(tmp_path / "hand", algorithm, client, BY_HAND, **changes)
    assert falling != run(tmp_path / "flat", algorithm, client, **changes)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_a_minimum_that_is_the_rate_is_the_constant_run_to_the_bit(schedule: Any, tmp_path: Path) -> None:
    rule = RateOverRounds(schedule, 0.0 if schedule == "constant" else CLIENT.lr)
    flat = run(tmp_path / "flat", FedAvg(), CLIENT)
    assert run(tmp_path / "rule", FedAvg(), replace(CLIENT, lr_over_rounds=rule)) == flat


def test_a_client_with_settings_of_its_own_falls_from_its_own_rate(tmp_path: Path) -> None:
    client = replace(CLIENT, lr_over_rounds=FALLING)
    changes = {"a": {"lr": 0.2}, "b": {"lr_over_rounds": None}}
    runner = make_runner(make_config(tmp_path, TASK, client=client, rounds=2, per_client=changes))
    runner.context.progress.round = 1
    assert runner.context.settings_of("a").lr == pytest.approx((0.2 + 0.01) / 2)
    assert runner.context.settings_of("b").lr == 0.1


@dataclass(frozen=True)
class Watched(Scaffold):
    """SCAFFOLD that shows each client's received weights and new control variate."""

    seen: Any = None

    def client_update(self, job: ClientJob) -> Report:
        before = job.received["weights"].clone()
        report = super().client_update(job)
        self.seen.append((job.client.name, before, job.state.tensors["control"].clone()))
        return report


def test_scaffold_divides_by_the_rate_of_the_round(tmp_path: Path) -> None:
    # of one step c_i⁺ = c_i − c + (x − y)/lr is the gradient a·(x − b) at x, whatever the rate
    task = Quadratic(clients={"a": (1.0, 3.0, 4), "b": (0.5, -2.0, 6)}, start=(0.1, 0.2))
    algorithm, client = Watched(seen=[]), replace(SGD, lr_over_rounds=FALLING)
    make_runner(make_config(tmp_path, task, algorithm, client=client, rounds=4)).run()
    assert len(algorithm.seen) == 8
    for name, x, control in algorithm.seen:
        a, b, _ = task.clients[name]
        assert torch.allclose(control, a * (x - b), rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Taught(Quadratic):
    """The toy task whose server has rows of its own."""

    def server_examples(self) -> int:
        return 2

    def load(self, client: str, split: str) -> Sequence[Any]:
        return [(1.0, 1.0), (1.0, 2.0)] if client == SERVER else super().load(client, split)


@dataclass(frozen=True)
class Teaching(FedAvg):
    """FedAvg whose server notes the rate that its own training has."""

    rates: Any = None

    def server_train(self, server: ServerState, job: ClientJob | None) -> None:
        assert job is not None
        self.rates.append(job.hp.lr)


def test_the_servers_own_training_ends_at_the_minimum(tmp_path: Path) -> None:
    algorithm, client = Teaching(rates=[]), replace(CLIENT, lr_over_rounds=RateOverRounds("linear", 0.02))
    task = Taught(clients=TASK.clients)
    make_runner(make_config(tmp_path, task, algorithm, client=client, rounds=4)).run()
    assert algorithm.rates == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02])  # before round 1 and after each


# --- refused, shown


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"lr_over_rounds": RateOverRounds(min=0.2)}, "client.lr_over_rounds.min is 0.2 but client.lr, from which"),
        ({"lr_over_rounds": FALLING, "schedule_span": "run"}, "client.schedule_span is run, and both go over"),
        (
            {"lr_over_rounds": FALLING, "optimizer": "adafactor", "relative_step": True},
            "client.relative_step is true, a rate of adafactor's own",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(client: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientConfig(**{"optimizer": "sgd", "lr": 0.1, **client})


def test_a_minimum_of_a_constant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"client.lr_over_rounds.min is 0.1 but .* is constant"):
        RateOverRounds("constant", 0.1)


def test_a_minimum_above_one_clients_own_rate_is_refused_with_its_name() -> None:
    settings = ["client.lr=0.1", "client.lr_over_rounds={min: 0.01}", "per_client={cinema: {lr: 0.001}}"]
    with pytest.raises(ConfigError, match=r"per_client\.cinema: client\.lr_over_rounds\.min is 0\.01"):
        load("smoke/fedavg", settings)


def test_the_dry_run_shows_rates_of_rounds_where_they_differ(tmp_path: Path) -> None:
    client = replace(CLIENT, lr_over_rounds=RateOverRounds("cosine", 0.01))
    shown = describe(build(make_config(tmp_path, TASK, client=client, rounds=4), num_ranks=1, rank=0), num_ranks=1)
    assert "learning rate over rounds:\n  client   round 1 0.1, round 3 0.055, round 4 0.0231802 (cosine)" in shown
    assert "over rounds" not in describe(build(make_config(tmp_path, TASK), num_ranks=1, rank=0), num_ranks=1)
