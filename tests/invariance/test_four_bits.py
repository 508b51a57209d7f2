"""Updates of 4 bits: the same bits for any number of ranks and transport, and the bytes that really travel."""

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
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.compression.payload import HEADER_BYTES
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.config.schema import ClientConfig, ClientsConfig, ServerConfig, SystemConfig

WIDTH = 5001
CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(5)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.001 * i for i in range(WIDTH)), noise=0.7, double=False)
CLIENT = ClientConfig(optimizer="sgd", lr=0.05, batch_size=4)
DILOCO = ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True)
CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "chance": (FedAvg(weights="equal"), {"server": DILOCO}),
    "nearest": (FedAvg(), {"exchange": ExchangeConfig(bits=4, rounding="nearest")}),
    "e3m0": (FedProx(), {"exchange": ExchangeConfig(bits=4, rounding="e3m0", error_feedback=True)}),
    "sampled": (FedAvg(), {"clients": ClientsConfig(per_round=3)}),
}
ROUNDS, MESSAGE = 3, HEADER_BYTES + (WIDTH + 1) // 2 + 2
FEEDBACK = ExchangeConfig(bits=4, error_feedback=True)


def run_case(name: str, folder: str, comm: Communicator | None = None, **changes: Any) -> tuple[str, int]:
    algorithm, settings = CASES[name]
    settings = {"client": CLIENT, "rounds": ROUNDS, "exchange": FEEDBACK, **settings, **changes}
    runner = make_runner(make_config(Path(folder) / name, TASK, algorithm, **settings), comm)
    before = runner.context.comm.meter.totals().get("aggregate/bytes_up", 0)
    digest = runner.run().digest
    return digest, runner.context.comm.meter.totals().get("aggregate/bytes_up", 0) - before


def run_all_cases(folder: str, system: SystemConfig) -> dict[str, tuple[str, int]]:
    return on_this_rank(run_case, CASES, CLIENTS, folder, system)


def run_counted(folder: str, system: SystemConfig) -> dict[str, int]:
    """Bytes of payload that this rank's meter has seen of one run's sums."""
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        run_case("nearest", folder, comm, system=system)
        return dict(comm.meter.totals())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    return in_one_process(run_case, CASES, tmp_path_factory)


@pytest.mark.long
def test_alone_it_counts_what_would_travel(alone: dict[str, tuple[str, int]]) -> None:
    assert {name: sent for name, (_, sent) in alone.items()} == {
        name: ROUNDS * MESSAGE * (3 if name == "sampled" else 5) for name in CASES
    }


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, {}),
        pytest.param(3, {"server_works": True}, marks=pytest.mark.slow),
        (3, {"shared_memory": "never"}),
        pytest.param(5, {}, marks=pytest.mark.slow),
    ],
    ids=["1-worker", "3-server-works", "2-workers-sockets", "4-workers"],
)
@pytest.mark.processes
def test_any_number_of_ranks_gives_the_bits_of_one_process(
    size: int, changes: dict[str, Any], alone: dict[str, tuple[str, int]], tmp_path: Path
) -> None:
    server, *_ = run_ranks(run_all_cases, size, str(tmp_path), replace(SystemConfig(), **changes))
    assert server == alone


@pytest.mark.processes
def test_the_wire_carries_two_numbers_in_a_byte(tmp_path: Path) -> None:
    """Of a server without clients of its own and two workers, over sockets."""
    system = SystemConfig(shared_memory="never", server_works=False)
    server, *workers = run_ranks(run_counted, 3, str(tmp_path), system)
    assert server["aggregate/physical_up"] == ROUNDS * 5 * MESSAGE
    assert sum(worker["aggregate/physical_up"] for worker in workers) == ROUNDS * 5 * MESSAGE
    assert MESSAGE / WIDTH < 0.52
