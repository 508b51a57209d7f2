"""Schedules over a whole run, what a client is evaluated with, best rounds per client, and private draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import ClientConfig, ClientsConfig, EvalConfig, PartitionConfig
from fedtorch.core.errors import ConfigError
from fedtorch.rounds.private_weights import private_weights
from fedtorch.rounds.runner import Runner
from fedtorch.train.optim import forget, make_optimizer, make_schedule, state_of

HEAD = PartitionConfig(private=("head",))
LINEAR = ClientConfig(optimizer="sgd", lr=2e-5, schedule="linear", schedule_span="run", warmup_ratio=0.1)


@dataclass(frozen=True)
class OwnHeads(Quadratic):
    """Every client draws its own head."""

    def draw_private(self, model: nn.Module, seed: int) -> Mapping[str, Tensor]:
        drawn = torch.randn(len(self.head), generator=torch.Generator().manual_seed(seed % 2**63), dtype=torch.float64)
        return {"head": drawn, "w": torch.full((1,), 99.0)}


@pytest.mark.parametrize(("taken", "lr"), [(0, 0), (71, 1e-5), (142, 2e-5), (781, 1e-5), (1420, 0), (2000, 0)])
def test_the_schedule_goes_on_where_earlier_rounds_stopped(taken: int, lr: float) -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer(["w"], [parameter], LINEAR)
    make_schedule(optimizer, LINEAR, 1420, taken)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(lr, abs=1e-12)


def test_ten_rounds_of_one_epoch_are_one_round_of_ten(tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (1.0, 2.0, 7)}, start=(0.5, -1.0), noise=0.5)
    hp = ClientConfig(
        optimizer="sgd", lr=0.1, momentum=0.9, batch_size=2, schedule="linear", warmup_ratio=0.1, optimizer_state="keep"
    )
    spanning = replace(hp, schedule_span="run")
    ten = make_runner(make_config(tmp_path / "ten", task, client=spanning, rounds=10))
    one = make_runner(make_config(tmp_path / "one", task, client=replace(hp, epochs=10), rounds=1))
    ten.run()
    one.run()
    assert torch.allclose(ten.context.server.weights, one.context.server.weights, atol=1e-14, rtol=0)
    assert ten.context.store.get("a").numbers["train/steps"] == 40


def test_total_epochs_end_the_training(tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (1.0, 2.0, 5)})
    hp = ClientConfig(optimizer="sgd", lr=0.1, batch_size=5, epochs=3, total_epochs=10)
    runner = make_runner(make_config(tmp_path, task, client=hp, rounds=5))
    assert runner.run().rounds == 5  # in the last one nobody takes a step
    lengths = [len(list(_job(runner, hp, round).plans(5, purpose="train"))) for round in range(5)]
    assert lengths == [3, 3, 3, 1, 0]
    assert _job(runner, hp, 0, rounds=5).steps_of_the_run(5) == 10


@pytest.mark.parametrize(
    ("rounds", "share", "steps_per_epoch", "expected"),
    [
        (10, Fraction(1), 142, 1420),
        (10, Fraction(2, 5), 142, 568),
        (10, Fraction(2, 5), 1, 4),
        (3, Fraction(2, 5), 1, 2),
    ],
)
def test_the_steps_of_the_run_follow_the_chance_to_be_drawn(
    tmp_path: Path, rounds: int, share: Fraction, steps_per_epoch: int, expected: int
) -> None:
    runner = make_runner(make_config(tmp_path, Quadratic(clients={"a": (1.0, 2.0, 5)})))
    job = _job(runner, replace(LINEAR, batch_size=1), 0, rounds=rounds, chance=share)
    assert job.steps_of_the_run(steps_per_epoch) == expected


def _job(runner: Runner, hp: ClientConfig, round: int, **changes: Any) -> Any:
    from fedtorch.core.client import ClientState
    from fedtorch.train.job import ClientJob
    from fedtorch.train.outgoing import Outgoing

    settings: dict[str, Any] = {
        "client": runner.components.clients[0],
        "round": round,
        "run_seed": 0,
        "received": {},
        "state": ClientState(),
        "outgoing": Outgoing(torch.zeros(0), (), "none"),
        "engine": runner.components.engine,
        "task": runner.components.task,
        "hp": hp,
        "examples": [],
        "on_step": lambda n: None,
        **changes,
    }
    return ClientJob(**settings)


def test_parameters_that_match_no_decay_keep_their_size() -> None:
    names, parameters = ["a.bias", "a.weight", "b.bias"], [nn.Parameter(torch.ones(2)) for _ in range(3)]
    hp = ClientConfig(optimizer="adamw", lr=0.1, weight_decay=0.5, no_decay=("*bias",))
    optimizer = make_optimizer(names, parameters, hp)
    for parameter in parameters:
        parameter.grad = torch.zeros(2)
    optimizer.step()
    assert [p.tolist() for p in parameters] == [[1, 1], [pytest.approx(0.95)] * 2, [1, 1]]


def test_state_of_an_optimiser_in_groups_goes_back_to_its_parameters(tmp_path: Path) -> None:
    """`w` decays and `head` does not, so their order in the optimiser differs from the one by name."""
    task = Quadratic(clients={"a": (1.0, 2.0, 5), "b": (0.5, -2.0, 5)}, head=(1.0, 1.0), start=(0.0, 0.0, 0.0))
    hp = ClientConfig(optimizer="adamw", lr=0.1, weight_decay=0.1, no_decay=("w",), optimizer_state="keep")
    runner = make_runner(make_config(tmp_path, task, client=hp, rounds=3))
    runner.run()
    tensors = runner.context.store.get("a").tensors
    assert tensors["train/optimizer/w/exp_avg"].shape == (3,)
    assert tensors["train/optimizer/head/exp_avg"].shape == (2,)


def test_clients_average_what_they_share_and_keep_what_is_private(tmp_path: Path) -> None:
    """Shared parameters [1,2], [3,-2], [5,6]; uniform whatever the sizes."""
    task = Quadratic(clients={"a": (1.0, 1.0, 100), "b": (1.0, 3.0, 1), "c": (1.0, 5.0, 1)}, start=(0.0,), head=(7.0,))
    hp = ClientConfig(optimizer="sgd", lr=1.0, batch_size=1000)  # one step to the optimum
    runner = make_runner(make_config(tmp_path, task, FedAvg(weights="equal"), client=hp, rounds=1, partition=HEAD))
    runner.run()
    assert runner.context.server.weights.tolist() == pytest.approx([3.0])
    assert [runner.context.store.get(name).tensors["private"].item() for name in "abc"] == pytest.approx([1, 3, 5])


def test_a_client_that_was_not_drawn_keeps_its_private_part_and_its_steps(tmp_path: Path) -> None:
    clients = {"a": (1.0, 1.0, 4), "b": (1.0, 3.0, 4), "c": (1.0, 5.0, 4)}
    task = Quadratic(clients=clients, head=(7.0,))
    hp = replace(LINEAR, lr=0.5, batch_size=2, optimizer_state="keep", optimizer="adamw")
    runner = make_runner(
        make_config(tmp_path, task, client=hp, rounds=3, partition=HEAD, clients=ClientsConfig(per_round=2))
    )
    runner._share_initial_weights()
    for _ in range(3):
        before = {name: runner.context.store.get(name) for name in clients}
        runner._one_round()
        after = {name: runner.context.store.get(name) for name in clients}
        changed = [name for name in clients if after[name].numbers != before[name].numbers]
        assert len(changed) == 2
        for name in set(clients) - set(changed):
            assert all(torch.equal(after[name].tensors[key], tensor) for key, tensor in before[name].tensors.items())


def test_every_client_draws_its_own_private_part(tmp_path: Path) -> None:
    task = OwnHeads(clients={"a": (1.0, 1.0, 4), "b": (1.0, 3.0, 4)}, head=(7.0, 7.0))
    frozen_rate = ClientConfig(optimizer="sgd", lr=1e-300, batch_size=4)  # a rate of 0 is refused
    runner = make_runner(make_config(tmp_path, task, client=frozen_rate, rounds=1, partition=HEAD))
    runner.run()
    heads = [runner.context.store.get(name).tensors["private"] for name in "ab"]
    assert not torch.equal(heads[0], heads[1]) and 7.0 not in heads[0].tolist()
    assert abs(runner.context.server.weights.item()) < 1e-299  # `w` is shared, so what was drawn for it is not used
    other = make_runner(make_config(tmp_path / "2", task, client=frozen_rate, rounds=1, partition=HEAD))
    state = other.context.store.get("a")
    assert torch.equal(
        private_weights(other.components, "a", state), heads[0]
    )  # the same draw, before any training too


def evaluated(tmp_path: Path, **changes: Any) -> Any:
    """Two clients that reach their own optimum in one step; the server's average is 0."""
    task = Quadratic(clients={"a": (1.0, -1.0, 4), "b": (1.0, 1.0, 4)}, start=(3.0,))
    hp = ClientConfig(optimizer="sgd", lr=1.0, batch_size=4)
    config = make_config(tmp_path, task, client=hp, rounds=2, eval=EvalConfig(**changes))
    runner = make_runner(config)
    return runner.run(), runner


def test_the_trained_model_is_evaluated_before_the_server_combines_it(tmp_path: Path) -> None:
    result, _ = evaluated(tmp_path, point="trained", also_received=True, best="per_client")
    for name in "ab":
        assert result.scores[name]["nearness"][0] == 0.0
        assert result.scores[name]["received/nearness"] == (-3.0, 3)


def test_the_received_model_is_evaluated_by_default(tmp_path: Path) -> None:
    result, _ = evaluated(tmp_path)
    assert {pairs["nearness"] for pairs in result.scores.values()} == {(-3.0, 3)}


def test_one_best_round_for_all_keeps_the_trained_models_too(tmp_path: Path) -> None:
    result, runner = evaluated(tmp_path, point="trained", best="together", ties="earlier")
    assert result.best_round == 1
    assert [result.scores[name]["nearness"][0] for name in "ab"] == [0.0, 0.0]
    assert runner.context.store.get("a").tensors["best/weights"].tolist() == [-1.0]


def test_a_client_that_sat_out_the_round_is_evaluated_with_what_it_received(tmp_path: Path) -> None:
    clients = {"a": (1.0, -1.0, 4), "b": (1.0, 1.0, 4), "c": (1.0, 5.0, 4)}
    hp = ClientConfig(optimizer="sgd", lr=1.0, batch_size=4)
    config = make_config(
        tmp_path,
        Quadratic(clients=clients),
        FedAvg(weights="equal"),
        client=hp,
        rounds=1,
        clients=ClientsConfig(per_round=2),
        eval=EvalConfig(every=0, point="trained"),
    )
    runner = make_runner(config)
    result = runner.run()
    trained = [name for name in clients if "trained" in runner.context.store.get(name).tensors]
    (idle,) = set(clients) - set(trained)
    assert [result.scores[name]["nearness"][0] for name in trained] == [0.0, 0.0]
    mean = sum(clients[name][1] for name in trained) / 2
    assert result.scores[idle]["nearness"][0] == pytest.approx(-3 * abs(mean - clients[idle][1]))


def test_each_client_goes_back_to_its_own_best_round(tmp_path: Path) -> None:
    """w overshoots: with a rate of 1.5 the distance to the optimum shrinks for `a` and grows for `b`."""
    task = Quadratic(clients={"a": (1.0, 0.0, 4), "b": (2.0, 0.0, 4)}, start=(), head=(1.0,))
    hp = ClientConfig(optimizer="sgd", lr=1.5, batch_size=4)
    task = replace(task, start=(0.0,))
    settings = {"client": hp, "rounds": 3, "partition": HEAD}
    result = make_runner(make_config(tmp_path, task, **settings, eval=EvalConfig(best="per_client"))).run()
    assert result.best_round is None
    # the head: a: 1 -> -0.5 -> 0.25 -> -0.125; b: 1 -> -2 -> 4 -> -8. nearness is the mean over w = 0 and the head
    assert result.scores["a"]["nearness"][0] == pytest.approx(-3 * 0.125 / 2)
    assert result.scores["b"]["nearness"][0] == pytest.approx(-3 * 2 / 2)


def test_scores_of_single_examples_add_up_to_the_clients(tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (1.0, -1.0, 4), "b": (1.0, 1.0, 9)}, noise=0.5)
    config = make_config(tmp_path, task, eval=EvalConfig(per_example=True, batch_size=1))
    result = make_runner(config).run()
    for name, pairs in result.scores.items():
        total, count = pairs["nearness"]
        values = result.each[name]["nearness"]
        assert len(values) == count and sum(values) == pytest.approx(total)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ClientConfig(warmup_steps=5, warmup_ratio=0.1), "warmup_steps is 5 and client.warmup_ratio is 0.1"),
        (lambda: ClientConfig(steps=5, total_epochs=3), "client.total_epochs is 3 but rounds are counted"),
        (lambda: EvalConfig(also_received=True), "eval.also_received is true but eval.point is received"),
        (lambda: EvalConfig(best="per_client", every=0), "eval.best is per_client but eval.every is 0"),
    ],
)
def test_settings_that_contradict_each_other(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


CONSTANT = replace(LINEAR, schedule="constant", warmup_ratio=0.0, warmup_steps=10)
COSINE = replace(LINEAR, schedule="cosine")


@pytest.mark.parametrize(
    ("hp", "taken", "share"), [(CONSTANT, 5, 0.5), (CONSTANT, 10, 1), (CONSTANT, 2000, 1), (COSINE, 2000, 0)]
)
def test_every_schedule_goes_on_and_stays_where_it_ended(hp: ClientConfig, taken: int, share: float) -> None:
    """transformers starts a constant rate's warm-up anew, and lets a cosine rise again beyond its end."""
    optimizer = make_optimizer(["w"], [nn.Parameter(torch.zeros(1))], hp)
    schedule = make_schedule(optimizer, hp, 1420, taken)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(share * hp.lr)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx((0.6 if taken == 5 else share) * hp.lr)


def test_a_share_of_steps_that_is_whole_is_not_rounded_up() -> None:
    """0.07 times 100 is above 7 in floating point."""
    hp = replace(LINEAR, warmup_ratio=0.07)
    optimizer = make_optimizer(["w"], [nn.Parameter(torch.zeros(1))], hp)
    make_schedule(optimizer, hp, 100, 7)
    assert optimizer.param_groups[0]["lr"] == hp.lr


def test_what_an_optimiser_keeps_does_not_tell_who_trained_before() -> None:
    hp = ClientConfig(optimizer="adamw", lr=0.1)
    names, parameters = ["a", "b"], [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]

    def kept_of_a_client_that_trains_a(optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        forget(optimizer)
        parameters[0].grad, parameters[1].grad = torch.ones(1), None
        optimizer.step()
        return state_of(optimizer, names, parameters)

    used = make_optimizer(names, parameters, hp)
    for parameter in parameters:
        parameter.grad = torch.ones(1)
    used.step()
    assert kept_of_a_client_that_trains_a(used) == kept_of_a_client_that_trains_a(make_optimizer(names, parameters, hp))
