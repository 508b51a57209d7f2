"""Sums at the scale of the round before: the same bits for any number of ranks, transport, and after a resume."""

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
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.comm.base import Communicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, ServerConfig, SystemConfig

pytestmark = pytest.mark.long

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), head=(0.5, -0.5), noise=0.7, double=False)
CLIENT = ClientConfig(optimizer="sgd", lr=0.05, batch_size=4)
PREVIOUS = SystemConfig(sum_scale="previous")

CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "fedadam": (FedAvg(weights="equal"), {"server": ServerConfig(optimizer="adam", lr=0.1)}),
    "scaffold": (Scaffold(), {}),
    "feddyn": (FedDyn(alpha=0.1), {"client": replace(CLIENT, shuffle=False)}),
    "ditto": (Ditto(lam=0.5), {}),
    "limit": (FedAvg(), {"clients": ClientsConfig(per_round=5, max_update_norm=12.0)}),
}
ROUNDS = 3


def run_case(name: str, folder: str, comm: Communicator | None = None, **changes: Any) -> tuple[str, Any]:
    algorithm, settings = CASES[name]
    settings = {"client": CLIENT, "clients": ClientsConfig(per_round=5), "rounds": ROUNDS, **settings}
    settings = {"system": PREVIOUS, **settings, **changes}
    runner = make_runner(make_config(Path(folder) / name, TASK, algorithm, **settings), comm)
    return runner.run().digest, runner.context.server.numbers.get("sum/exponent")


def run_all_cases(folder: str, system: SystemConfig) -> dict[str, tuple[str, Any]]:
    return on_this_rank(run_case, CASES, CLIENTS, folder, system)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    return in_one_process(run_case, CASES, tmp_path_factory)


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, {}),
        (3, {"exchange": "reduce"}),
        (3, {"exchange": "send", "update_memory_mb": 1}),
        (3, {"server_works": True}),
        (5, {}),
        (5, {"shared_memory": "never"}),
    ],
    ids=["2", "3-reduce", "3-send", "3-server-works", "5", "5-sockets"],
)
@pytest.mark.processes
def test_any_number_of_ranks_gives_the_bits_of_one_process(
    size: int, changes: dict[str, Any], alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    server, *_ = run_ranks(run_all_cases, size, str(tmp_path), replace(PREVIOUS, **changes))
    assert server == alone


def test_the_first_round_has_the_bits_of_the_reports_scale(tmp_path: Path) -> None:
    reports = run_case("fedavg", str(tmp_path / "reports"), system=SystemConfig(), rounds=1)
    previous = run_case("fedavg", str(tmp_path / "previous"), rounds=1)
    assert reports[0] == previous[0] and reports[1] is None and isinstance(previous[1], int)


@pytest.mark.parametrize("at", [1, 2])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(
    at: int, alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"checkpoint": CheckpointConfig(every=1), "client": CLIENT}
    algorithm, settings = CASES["fedadam"]
    settings = {"clients": ClientsConfig(per_round=5), "system": PREVIOUS, **settings, **changes}
    make_runner(make_config(tmp_path, TASK, algorithm, rounds=at, **settings)).run()
    runner = make_runner(make_config(tmp_path, TASK, algorithm, rounds=ROUNDS, **settings))
    assert runner.run(resume=at).digest == alone["fedadam"][0]
