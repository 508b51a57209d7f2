"""Updates in fewer bits in a run: what travels, what stays with the client, and what a failure leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from factors import Factors, Regression
from harness import SGD, interrupted_and_resumed, make_config, make_runner
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.adapters.hetlora import HetLoRA
from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.adapters.stacks import FLoRA
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.compression.payload import HEADER_BYTES
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientsConfig,
    PrivacyConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import CheckpointError, ConfigError
from fedtorch.core.state_keys import LEFT_OUT
from fedtorch.privacy.settings import SecureSum
from fedtorch.setup.rules.exchange import nobody_hides_updates, updates_are_one_vector

WIDTH = 1000
CLIENTS = {"a": (0.3, 1.0, 4), "b": (0.5, -2.0, 6), "c": (0.2, 3.0, 5)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.001 * i for i in range(WIDTH)), noise=0.5, double=False)
CHANCE, FEEDBACK = ExchangeConfig(bits=4), ExchangeConfig(bits=4, error_feedback=True)
HALF = ExchangeConfig(bits=16)


def runner_of(folder: Path, **changes: Any) -> Any:
    changes = {"exchange": FEEDBACK, "task": TASK, "algorithm": FedAvg(weights="equal"), **changes}
    return make_runner(make_config(folder, changes.pop("task"), changes.pop("algorithm"), **changes))


@pytest.mark.parametrize(("exchange", "length"), [(CHANCE, WIDTH // 2 + 1), (HALF, 2 * WIDTH)], ids=["4", "16"])
def test_fewer_bytes_travel(exchange: ExchangeConfig, length: int, tmp_path: Path) -> None:
    runner = runner_of(tmp_path, exchange=exchange)
    runner.run()
    sent = runner.context.comm.meter.totals()
    assert sent["aggregate/bytes_up"] == 2 * 3 * (HEADER_BYTES + length)
    plain = runner_of(tmp_path / "plain", exchange=ExchangeConfig())
    plain.run()
    dense = plain.context.comm.meter.totals()
    assert dense["aggregate/bytes_up"] == 2 * 3 * 4 * WIDTH
    assert dense["broadcast/bytes_down"] == sent["broadcast/bytes_down"] > 0


def test_the_server_steps_along_what_was_sent(tmp_path: Path) -> None:
    """One client and one round of nearest: what it learned, in sevenths of a power of two."""
    task = Quadratic(clients={"a": (0.3, 1.0, 4)}, start=tuple(0.001 * i for i in range(WIDTH)), double=False)
    plain, rounded = (
        runner_of(tmp_path / name, task=task, exchange=exchange, rounds=1)
        for name, exchange in (("plain", ExchangeConfig()), ("rounded", ExchangeConfig(bits=4, rounding="nearest")))
    )
    start = torch.tensor(task.start)
    plain.run(), rounded.run()
    full, sent = start - plain.context.vectors.weights, start - rounded.context.vectors.weights
    step = 2.0 ** torch.ceil(torch.log2(full.abs().max() / 7))
    torch.testing.assert_close(sent, (full / step).round() * step, atol=2e-7, rtol=0)
    assert float((sent - full).abs().max()) > 0.3 * float(step)


def test_with_16_bits_it_steps_along_bfloat16(tmp_path: Path) -> None:
    """One client and one round: the update is start − weights as the server has them, each number its nearest."""
    task = Quadratic(clients={"a": (0.3, 1.0, 4)}, start=tuple(0.001 * i for i in range(WIDTH)), double=False)
    plain, half = (
        runner_of(tmp_path / str(exchange.bits), task=task, exchange=exchange, rounds=1)
        for exchange in (ExchangeConfig(), HALF)
    )
    plain.run(), half.run()
    start = torch.tensor(task.start)
    full, sent = start - plain.context.vectors.weights, start - half.context.vectors.weights
    torch.testing.assert_close(sent, full.bfloat16().float(), atol=3e-7, rtol=2**-8)
    assert 1e-4 < float((sent - full).norm() / full.norm()) < 2**-8


def test_with_feedback_nothing_is_lost(tmp_path: Path) -> None:
    """As the clients start from the same weights, what a round did not send is in their states."""
    plain = runner_of(tmp_path / "plain", exchange=ExchangeConfig(), rounds=1)
    runner = runner_of(tmp_path / "packed", rounds=1)
    plain.run(), runner.run()
    left = torch.stack([runner.context.store.get(name).tensors[LEFT_OUT] for name in CLIENTS]).mean(0)
    assert float(left.abs().max()) > 1e-3
    torch.testing.assert_close(runner.context.vectors.weights - left, plain.context.vectors.weights, atol=1e-6, rtol=0)


def test_without_it_clients_keep_nothing(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, exchange=CHANCE)
    runner.run()
    assert not runner.context.is_stateful and runner.context.store.clients() == []


def test_what_is_kept_joins_the_next_update(tmp_path: Path) -> None:
    """A rate of 0 sends nothing but what is left, until the rest is smaller than what can be sent."""
    runner = runner_of(tmp_path, rounds=1)
    runner.run()
    still = runner_of(tmp_path / "still", rounds=1, client=replace(SGD, lr=0.0))
    kept = {name: runner.context.store.get(name) for name in CLIENTS}
    for name, state in kept.items():
        still.context.store.put(name, state)
    still.run()
    moved = torch.tensor(TASK.start) - still.context.vectors.weights
    left = torch.stack([still.context.store.get(name).tensors[LEFT_OUT] for name in CLIENTS]).mean(0)
    before = torch.stack([state.tensors[LEFT_OUT] for state in kept.values()]).mean(0)
    assert float(moved.abs().max()) > 1e-3
    torch.testing.assert_close(moved + left, before, atol=1e-6, rtol=0)


def test_a_client_that_fails_or_is_refused_keeps_what_it_had(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, rounds=1)
    runner.run()
    before = runner.context.store.get("a").tensors[LEFT_OUT].clone()
    for name, changes in (
        ("fails", {"task": replace(TASK, bad=("a",))}),
        ("nan", {"task": replace(TASK, poison=("a",))}),
        ("norm", {"clients": ClientsConfig(max_update_norm=1e-3, min=1)}),
    ):
        other = runner_of(tmp_path / name, rounds=1, **changes)
        other.context.store.put("a", runner.context.store.get("a"))
        other.run()
        assert "a" not in other.result.weights, name
        assert torch.equal(other.context.store.get("a").tensors[LEFT_OUT], before), name


@pytest.mark.parametrize(("calls", "bits"), [(5, 4), (9, 4), (14, 4), (9, 16)])
def test_an_interrupted_run_has_the_bits_of_one_that_was_not(calls: int, bits: Any, tmp_path: Path) -> None:
    settings = {
        "exchange": ExchangeConfig(bits=bits, error_feedback=True),
        "checkpoint": CheckpointConfig(every=1),
        "server": ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True),
        "rounds": 4,
    }
    whole = make_runner(make_config(tmp_path / "whole", TASK, FedAvg(), **settings)).run()
    assert (
        interrupted_and_resumed(make_config(tmp_path / "cut", TASK, FedAvg(), **settings), calls).digest == whole.digest
    )


def test_a_checkpoint_without_what_clients_had_left_is_refused(tmp_path: Path) -> None:
    settings = {"checkpoint": CheckpointConfig(every=1), "rounds": 1}
    runner = runner_of(tmp_path, **settings)
    commit = runner.context.store.commit

    def without(accepted: Any) -> None:
        commit(accepted)
        for name in CLIENTS:
            state = runner.context.store.get(name)
            del state.tensors[LEFT_OUT]
            state.numbers["other"] = 1
            runner.context.store.put(name, state)

    runner.context.store.commit = without
    runner.run()
    with pytest.raises(CheckpointError, match=LEFT_OUT):
        runner_of(tmp_path, **{**settings, "rounds": 2}).run(resume=1)


# --- what is refused


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"paradigm": "centralized"}, "paradigm is centralized"),
        ({"algorithm": FedAssistant(payload="delta")}, "has messages of its own"),
        ({"algorithm": Scaffold()}, "sends 2 vectors, not one"),
        ({"algorithm": FedAvg(robust="median")}, "algorithm.robust is set: such rules compare updates side by side"),
        ({"system": SystemConfig(sum_scale="previous")}, "system.sum_scale is previous"),
        ({"task": replace(TASK, double=True)}, "the shared parameters are torch.float64"),
    ],
)
def test_what_cannot_be_rounded_is_refused(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    for exchange in (CHANCE, HALF):
        with pytest.raises(ConfigError, match=f"exchange.bits is {exchange.bits} but .*{why}"):
            runner_of(tmp_path, exchange=exchange, **changes)


@pytest.mark.parametrize(
    ("privacy", "why"),
    [
        (PrivacyConfig(kind="client", clip=1.0, noise_multiplier=1.0, delta=1e-5), "privacy.kind is client"),
        (PrivacyConfig(clip=1.0, secure_sum=SecureSum()), "privacy.secure_sum is set, which adds masked whole numbers"),
    ],
)
def test_privacy_is_refused(privacy: PrivacyConfig, why: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, TASK, exchange=CHANCE, privacy=privacy)
    with pytest.raises(ConfigError, match=f"exchange.bits is 4 but {why}"):
        nobody_hides_updates(SimpleNamespace(config=config))  # type: ignore[arg-type]
    assert nobody_hides_updates(SimpleNamespace(config=make_config(tmp_path, TASK))) is None  # type: ignore[arg-type]


def test_rules_that_send_no_differences_are_refused(tmp_path: Path) -> None:
    for rule, why in ((HetLoRA(), "has clients that send their factors"), (FLoRA(), "combines updates in a way")):
        config = make_config(tmp_path, TASK, rule, exchange=CHANCE)
        with pytest.raises(ConfigError, match=f"exchange.bits is 4 but .*{why}"):
            updates_are_one_vector(SimpleNamespace(config=config, algorithm=rule))  # type: ignore[arg-type]


RULES = [FedProx(), Ditto(lam=0.5), FedDyn(alpha=0.1), PFedMe()]


@pytest.mark.parametrize("algorithm", RULES, ids=lambda value: type(value).__name__)
def test_other_rules_that_add_up_take_it(algorithm: Any, tmp_path: Path) -> None:
    plain, packed = (
        runner_of(tmp_path / name, algorithm=algorithm, exchange=exchange)
        for name, exchange in (("plain", ExchangeConfig()), ("packed", FEEDBACK))
    )
    plain.run(), packed.run()
    moved = plain.context.vectors.weights - torch.tensor(TASK.start)
    apart = packed.context.vectors.weights - plain.context.vectors.weights
    assert 0 < float(apart.norm()) < 0.3 * float(moved.norm())


class Narrow(Regression):
    """In fp32."""

    def build_model(self, seed: int) -> nn.Module:
        return Factors().float()

    def load(self, client: str, split: str) -> list[tuple[Tensor, Tensor]]:
        return [(x.float(), y.float()) for x, y in super().load(client, split)]


def test_of_a_factor_that_rests_nothing_travels_and_what_was_lost_waits(tmp_path: Path) -> None:
    task = Narrow({"a": (1.0, 1.0, 5), "b": (2.0, -1.0, 8)})
    runners = [
        runner_of(tmp_path / str(bits), task=task, algorithm=RoLoRA(), exchange=exchange, rounds=rounds, client=SGD)
        for bits, (exchange, rounds) in enumerate(((FEEDBACK, 1), (FEEDBACK, 2), (ExchangeConfig(), 2)))
    ]
    start = runners[0].components.engine.initial_shared.clone()
    for runner in runners:
        runner.run()
    first, second, plain = (runner.context.vectors.weights for runner in runners)
    layout = runners[0].components.engine.shared
    there = [torch.zeros(layout.size, dtype=torch.bool) for _ in range(2)]
    for round, travels in enumerate(there):
        travels[RoLoRA().places("sent", layout, "a", round).indices] = True  # type: ignore[union-attr]
    rests = there[0] & ~there[1]  # B is trained before A
    assert rests.any() and torch.equal(first[rests], second[rests]) and not torch.equal(first, second)
    left = [runner.context.store.get("a").tensors[LEFT_OUT] for runner in runners[:2]]
    assert torch.equal(left[0][rests], left[1][rests]) and left[0][rests].any()
    assert not left[0][~there[0]].any() and left[1][there[1] & ~there[0]].any()
    assert 0 < float((second - plain).norm()) < 0.3 * float((plain - start).norm())
