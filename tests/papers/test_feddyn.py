"""FedDyn (Acar et al. 2021): its numbers by hand, what it comes to, and what a client that sits out keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.config.schema import ClientConfig, ClientsConfig, ServerConfig
from fedtorch.rounds.runner import Runner
from fedtorch.train.engine import Engine
from fedtorch.train.job import ClientJob

UNLIKE = {"1": (1.0, 0.0, 1), "2": (3.0, 4.0, 1)}
ALPHA = 0.5
# one step of rate 1/(a + alpha) minimises a quadratic client's objective exactly
EXACT = {name: {"lr": 1 / (a + ALPHA)} for name, (a, _, _) in UNLIKE.items()}
# round -> g_1, g_2, h, theta; theta_i of round 1 and 2 follow from them
ROUNDS = {
    1: (0.3333333333, -1.2857142857, -0.4761904762, 2.9047619048),
    2: (1.1904761905, -1.5714285714, -0.1904761905, 2.7142857143),
    3: (1.6984126984, -1.8979591837, -0.0997732426, 2.7324263039),
    60: (2.999999939, -2.9999999464, -3.7e-9, 2.9999999858),
}


def rounds_of(runner: Runner) -> Iterator[int]:
    """The number of every further round, after it."""
    runner._share_initial_weights()
    while True:
        runner._one_round()
        yield runner.context.round


def own(runner: Runner, client: str) -> Any:
    """g_i, flat; None before the client's first round."""
    return runner.context.store.get(client).tensors.get("gradient")


def test_two_unlike_clients_by_hand(tmp_path: Path) -> None:
    task = Quadratic(clients=UNLIKE, start=(1.0,))
    runner = make_runner(make_config(tmp_path, task, FedDyn(alpha=ALPHA), per_client=EXACT, rounds=60))
    for number in rounds_of(runner):
        server = runner.context.server
        if number in ROUNDS:
            found = (own(runner, "1"), own(runner, "2"), server.tensors["mean_gradient"], server.weights)
            assert [float(value) for value in found] == pytest.approx(ROUNDS[number], abs=1e-9), number
        if number == 60:
            break


def test_clients_models_of_the_first_rounds_by_hand(tmp_path: Path) -> None:
    seen: list[float] = []

    class Watched(FedDyn):
        def client_update(self, job: ClientJob) -> Any:
            report = super().client_update(job)
            seen.append(job.engine.snapshot().item())
            return report

    task = Quadratic(clients=UNLIKE, start=(1.0,))
    make_runner(make_config(tmp_path, task, Watched(alpha=ALPHA), per_client=EXACT, rounds=3)).run()
    expected = [0.3333333333, 3.5714285714, 1.1904761905, 3.4761904762, 1.6984126984, 3.3673469388]
    assert seen == pytest.approx(expected, abs=1e-9)


def end(folder: Path, algorithm: Algorithm, task: Quadratic, **changes: Any) -> Runner:
    runner = make_runner(make_config(folder / type(algorithm).__name__, task, algorithm, **changes))
    runner.run()
    return runner


def test_unlike_clients_meet_at_the_optimum_of_their_sum_where_fedavg_does_not(tmp_path: Path) -> None:
    """Ten steps per round: every client nearly reaches its own optimum, whose mean FedAvg takes."""
    task = Quadratic(clients={"a": (1.0, -2.0, 5), "b": (2.0, 1.0, 50), "c": (5.0, 3.0, 9)}, start=(0.5,))
    hp = replace(SGD, epochs=None, steps=10)
    optimum = (1.0 * -2.0 + 2.0 * 1.0 + 5.0 * 3.0) / 8
    dyn = end(tmp_path, FedDyn(alpha=1.0), task, client=hp, rounds=50)
    average = end(tmp_path, FedAvg(weights="equal"), task, client=hp, rounds=10)
    assert dyn.context.server.weights.item() == pytest.approx(optimum, abs=1e-6)
    assert abs(average.context.server.weights.item() - optimum) > 0.5
    # g_i is the client's gradient there, and h is their mean, which is zero
    assert [own(dyn, name).item() for name in "abc"] == pytest.approx(
        [a * (optimum - b) for a, b, _ in task.clients.values()], abs=1e-5
    )
    assert dyn.context.server.tensors["mean_gradient"].item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("clients", "task_changes"),
    [
        (ClientsConfig(per_round=2), {}),
        (ClientsConfig(per_round=4, sampling="size_proportional"), {}),
        (ClientsConfig(), {"poison": ("b",)}),
        (ClientsConfig(max_update_norm=1.0), {}),
    ],
    ids=["some", "some-twice", "one-fails", "one-is-refused"],
)
def test_the_servers_h_is_the_mean_of_what_all_clients_keep(
    clients: ClientsConfig, task_changes: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {name: (1.0, b, n) for name, b, n in (("a", 1.0, 3), ("b", 60.0, 5), ("c", 2.0, 9), ("d", -1.0, 1))}
    task = Quadratic(clients=sizes, start=(0.0, 0.3), **task_changes)
    runner = make_runner(make_config(tmp_path, task, FedDyn(alpha=0.5), clients=clients, rounds=6))
    before: dict[str, Any] = dict.fromkeys(sizes)
    for number in rounds_of(runner):
        accepted = {report.client for report in runner.context.server.accepted}
        kept = {name: own(runner, name) for name in sizes}
        for name in set(sizes) - accepted:
            assert kept[name] is before[name] or torch.equal(kept[name], before[name]), (number, name)
        mean = sum(value for value in kept.values() if value is not None) / len(sizes)
        assert torch.allclose(runner.context.server.tensors["mean_gradient"], mean, rtol=1e-12, atol=1e-12)
        before = kept
        if number == 6:
            break
    assert accepted < set(sizes)


def test_the_first_round_is_fedprox_with_a_server_that_steps_twice_as_far(tmp_path: Path) -> None:
    """All g_i are 0, and h/α is then the mean step: with all clients in the cohort θ moves by twice that."""
    task = Quadratic(clients={"a": (1.0, 1.0, 10), "b": (2.0, -1.0, 30)}, start=(0.3, -0.7), noise=0.5, dropout=0.25)
    hp = ClientConfig(optimizer="sgd", lr=0.1, batch_size=4, epochs=2)
    dyn = end(tmp_path, FedDyn(alpha=0.2), task, client=hp, rounds=1)
    twice = ServerConfig(optimizer="sgd", lr=2.0)
    prox = end(tmp_path, FedProx(mu=0.2, weights="equal"), task, client=hp, server=twice, rounds=1)
    assert torch.allclose(dyn.context.server.weights, prox.context.server.weights, rtol=1e-12, atol=1e-14)
    # the same objective, so the same reported losses
    curves = [[report.curve for report in runner.context.server.accepted] for runner in (dyn, prox)]
    for one, other in zip(*curves, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_the_penalty_is_the_objective_whose_gradient_is_added(tmp_path: Path) -> None:
    """By central differences around a point away from the start, with a g_i."""
    task = Quadratic(clients={"a": (1.0, 1.0, 1)}, start=(0.3, -0.7))
    runner = make_runner(make_config(tmp_path, task, FedDyn(alpha=0.5)))
    runner._share_initial_weights()
    outgoing = runner.context.updates.blank()
    job = runner.trainer._make_job(runner.components.clients[0], 1, outgoing=outgoing, on_step=lambda index: None)
    job.state.tensors["gradient"] = torch.tensor([0.4, -2.0], dtype=torch.float64)
    bend = FedDyn(alpha=0.5).correction(job)

    def at(point: torch.Tensor) -> tuple[float, torch.Tensor]:
        engine: Engine = job.engine
        engine.load(point)
        engine.clear_gradients()
        penalty = bend(engine)
        assert penalty is not None
        return float(penalty), torch.cat([gradient.flatten() for gradient in engine.shared_gradients()])

    start = job.received["weights"].clone()
    assert at(start)[0] == 0.0
    point = start + torch.tensor([0.7, 0.2], dtype=torch.float64)
    slopes = [(at(point + step)[0] - at(point - step)[0]) / 2e-4 for step in 1e-4 * torch.eye(2, dtype=torch.float64)]
    assert at(point)[1].tolist() == pytest.approx(slopes, rel=1e-7)


def test_alpha_must_be_positive(tmp_path: Path) -> None:
    from fedtorch.config.load import load
    from fedtorch.core.errors import ConfigError

    with pytest.raises(ConfigError, match="algorithm.alpha is 0.* should be a number above 0"):
        load("smoke/fedavg", ["algorithm={name: feddyn, alpha: 0}"])
