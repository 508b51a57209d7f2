"""Asynchronous rounds have the same bits on any number of ranks, also where a run goes on on another number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import in_one_process, on_this_rank
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig, StalenessConfig
from fedtorch.config.schema import (
    AttackConfig,
    CheckpointConfig,
    ClientConfig,
    EvalConfig,
    ExchangeConfig,
    PartitionConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.train.settings import TrainerConfig

pytestmark = pytest.mark.processes

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(
    clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), head=(0.5, -0.5), noise=0.7, dropout=0.2, double=False
)
CLIENT = ClientConfig(optimizer="sgd", lr=0.05, batch_size=4)
ADAM = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep", schedule="linear")
PREVIOUS = SystemConfig(sum_scale="previous")
ASYNC = AsyncConfig(buffer=3, concurrent=5, staleness=StalenessConfig("polynomial"))
SLOW = ClockConfig(duration=DurationConfig(kind="table", seconds={**dict.fromkeys(CLIENTS, 1.0), "c2": 10.0}))
CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {"eval": EvalConfig(every=2)}),
    "adam": (FedAvg(weights="equal"), {"server": ServerConfig(optimizer="adam", lr=0.1)}),
    "private_head": (
        FedAvg(),
        {"client": ADAM, "partition": PartitionConfig(private=("head",)), "eval": EvalConfig(every=1)},
    ),
    "ditto": (Ditto(lam=0.5), {"client": ADAM, "asynchrony": replace(ASYNC, buffer=5)}),
    "fedasync": (FedAvg(), {"asynchrony": replace(ASYNC, buffer=1, towards="model", clock=SLOW), "rounds": 8}),
    "trained": (
        FedAvg(),
        {
            "client": ADAM,
            "asynchrony": replace(ASYNC, buffer=5),
            "partition": PartitionConfig(private=("head",)),
            "eval": EvalConfig(every=1, point="trained", also_received=True, best="per_client", per_example=True),
        },
    ),
    "overlap": (FedAvg(), {"eval": EvalConfig(every=1, overlap=True)}),
    "attack": (FedAvg(), {"attack": AttackConfig("signflip", clients=("c2", "c5"), factor=2.0)}),
    "trainer": (FedAvg(), {"client": ClientConfig(trainer=TrainerConfig("own_training:train"))}),
    "four_bits": (
        FedAvg(),
        {"client": ADAM, "exchange": ExchangeConfig(bits=4, error_feedback=True), "eval": EvalConfig(every=2)},
    ),
    "late": (FedAvg(), {"asynchrony": replace(ASYNC, buffer=1, max_staleness=2, clock=SLOW), "rounds": 8}),
}
ROUNDS = 4


def run_case(name: str, folder: str, comm: Communicator | None = None, **changes: Any) -> tuple[str, Any]:
    algorithm, settings = CASES[name]
    settings = {"client": CLIENT, "rounds": ROUNDS, "system": PREVIOUS, "asynchrony": ASYNC, **settings, **changes}
    if "exchange" in settings:  # messages are added at scales of their own
        settings["system"] = replace(settings["system"], sum_scale="reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTORCH_TESTING", "1")  # for attacks
        result = make_runner(make_config(Path(folder) / name, TASK, algorithm, **settings), comm).run()
    return result.digest, result.scores


def run_all_cases(folder: str, system: SystemConfig) -> dict[str, tuple[str, Any]]:
    return on_this_rank(run_case, CASES, CLIENTS, folder, system)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    return in_one_process(run_case, CASES, tmp_path_factory)


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, {}),
        pytest.param(3, {"exchange": "reduce", "update_memory_mb": 1}, marks=pytest.mark.slow),
        (3, {"server_works": True, "exchange": "send"}),
        pytest.param(5, {}, marks=pytest.mark.slow),
        pytest.param(5, {"shared_memory": "never"}, marks=pytest.mark.slow),
    ],
    ids=["2", "3-reduce", "3-server-works", "5", "5-sockets"],
)
def test_any_number_of_ranks_gives_the_bits_of_one_process(
    size: int, changes: dict[str, Any], alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    server, *_ = run_ranks(run_all_cases, size, str(tmp_path), replace(PREVIOUS, **changes))
    assert server == alone


def go_on(folder: str, at: int | None, rounds: int, name: str) -> Any:
    algorithm, settings = CASES[name]
    settings = {"client": CLIENT, "system": PREVIOUS, "asynchrony": ASYNC, **settings, "rounds": rounds}
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        config = make_config(Path(folder), TASK, algorithm, checkpoint=CheckpointConfig(every=1), **settings)
        result = make_runner(config, comm).run(at)
        return result.digest, result.scores


@pytest.mark.parametrize(
    ("name", "at", "rounds"), [pytest.param("private_head", 2, 4, marks=pytest.mark.slow), ("fedasync", 5, 8)]
)
def test_a_run_goes_on_on_another_number_of_ranks(
    name: str, at: int, rounds: int, alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    run_ranks(go_on, 2, str(tmp_path), None, at, name)
    server, *_ = run_ranks(go_on, 4, str(tmp_path), at, rounds, name)
    assert server[0] == alone[name][0]
