"""The same bits for any number of ranks and any packing of clients onto them, interrupted or not."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import in_one_process, on_this_rank
from harness import make_config, make_runner
from ranks import expect_exit, run_ranks
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    EvalConfig,
    PartitionConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import Interrupted

pytestmark = pytest.mark.long

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(
    clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), head=(0.5, -0.5), noise=0.7, dropout=0.2, double=False
)
CLIENT = ClientConfig(optimizer="sgd", lr=0.05, batch_size=4)
ADAM = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep", schedule="linear")
BY_LENGTH: dict[str, Any] = {"group_by_length": True, "max_tokens_per_batch": 20}
HEAD = PartitionConfig(private=("head",))

# (algorithm, changes to the config): every one samples 5 of the 7 clients
CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "fedopt_lorar": (FedAvg(weights="lorar"), {"server": ServerConfig(optimizer="sgd", momentum=0.9)}),
    "fedadam": (FedAvg(weights="equal"), {"server": ServerConfig(optimizer="adam", lr=0.1)}),
    "diloco": (
        FedAvg(weights="equal"),
        {
            "client": replace(ADAM, steps=3, epochs=None, schedule="cosine", schedule_span="run", schedule_floor=0.05),
            "server": ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True),
        },
    ),
    "fedprox": (FedProx(mu=0.1), {}),
    "scaffold": (Scaffold(), {}),
    "feddyn": (FedDyn(alpha=0.1), {"client": replace(CLIENT, shuffle=False)}),
    "fednova": (FedNova(), {}),
    "ditto": (Ditto(lam=0.5), {"client": ADAM}),
    "private_head": (FedAvg(), {"client": ADAM, "partition": HEAD, "eval": EvalConfig(every=2)}),
    "trained_point": (
        FedAvg(weights="equal"),
        {
            "client": replace(ADAM, schedule_span="run", warmup_ratio=0.1, no_decay=("head",), weight_decay=0.1),
            "partition": HEAD,
            "eval": EvalConfig(point="trained", also_received=True, best="per_client", per_example=True),
        },
    ),
    "by_length": (FedAvg(), {"client": replace(CLIENT, **BY_LENGTH, accumulation=2, epochs=2)}),
    "by_length_in_steps": (FedAvg(), {"client": replace(CLIENT, **BY_LENGTH, steps=3, epochs=None)}),
    "local": (Local(), {"paradigm": "local", "eval": EvalConfig(every=2)}),
}
ROUNDS = 3


def run_case(name: str, folder: str, comm: Communicator | None = None, **changes: Any) -> tuple[str, Any]:
    algorithm, settings = CASES[name]
    clients = ClientsConfig() if name == "local" else ClientsConfig(per_round=5)
    settings = {"client": CLIENT, "clients": clients, "rounds": ROUNDS, **settings, **changes}
    result = make_runner(make_config(Path(folder) / name, TASK, algorithm, **settings), comm).run()
    return result.digest, result.scores


def run_all_cases(folder: str, system: SystemConfig) -> dict[str, tuple[str, Any]]:
    return on_this_rank(run_case, CASES, CLIENTS, folder, system)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    """Every case in one process, through no group at all."""
    return in_one_process(run_case, CASES, tmp_path_factory)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "system"),
    [
        (2, SystemConfig()),
        (3, SystemConfig(exchange="reduce")),
        (3, SystemConfig(exchange="send")),
        (3, SystemConfig(server_works=True, update_memory_mb=1)),
        (5, SystemConfig()),
        (9, SystemConfig()),  # one worker more than clients
    ],
    ids=["2", "3-reduce", "3-send", "3-server-works", "5", "9-idle-rank"],
)
def test_any_number_of_ranks_gives_the_bits_of_one_process(
    size: int, system: SystemConfig, alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    server, *workers = run_ranks(run_all_cases, size, str(tmp_path), system)
    for name, (digest, scores) in alone.items():
        assert server[name][0] == digest, name
        assert server[name][1] == scores, name
    assert all(outcome[0] == "" for worker in workers for outcome in worker.values())


def test_small_memory_for_updates_and_states_changes_nothing(
    alone: dict[str, tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for a single update and no state, everything else goes through files."""
    for name in ("fedavg", "scaffold", "ditto"):
        algorithm, settings = CASES[name]
        settings = {"client": CLIENT, "clients": ClientsConfig(per_round=5), "rounds": ROUNDS, **settings}
        runner = make_runner(make_config(tmp_path / name, TASK, algorithm, **settings))
        runner.context.updates.capacity = 1
        runner.context.store.memory_bytes = 0
        assert runner.run().digest == alone[name][0]


def run_until(name: str, folder: str, last: int, die_at: int | None = None, resume: int | None = None) -> str | None:
    """One of several ranks: train `last` rounds in all; rank `die_at` kills itself at the first step after round 2."""
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60) as comm:
        return train(name, folder, comm, last, die_at, resume)


def train(name: str, folder: str, comm: Communicator | None, last: int, die_at: int | None, resume: int | None) -> str:
    algorithm, settings = CASES[name]
    clients = ClientsConfig() if name == "local" else ClientsConfig(per_round=5)
    saving = CheckpointConfig(every=1, keep=1)
    settings = {"client": CLIENT, "clients": clients, "rounds": last, "checkpoint": saving, **settings}

    def stop() -> bool:
        if runner.context.comm.rank == die_at and runner.context.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    runner = make_runner(make_config(Path(folder) / name, TASK, algorithm, **settings), comm, stop=stop)
    return runner.run(resume).digest


SLOW = pytest.mark.slow


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "victim", "again"),
    [
        ("fedopt_lorar", 0, 4),
        pytest.param("scaffold", 2, 2, marks=SLOW),
        ("private_head", 1, 4),
        pytest.param("ditto", 2, 2, marks=SLOW),
        pytest.param("ditto", 0, 5, marks=SLOW),
        pytest.param("local", 2, 4, marks=SLOW),
        pytest.param("scaffold", 0, 4, marks=SLOW),
        pytest.param("feddyn", 0, 4, marks=SLOW),
        pytest.param("fedopt_lorar", 1, 2, marks=SLOW),
    ],
)
def test_killed_and_resumed_on_another_number_of_ranks_gives_the_same_bits(
    name: str, victim: int, again: int, alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    outcomes = expect_exit(run_until, 3, name, str(tmp_path), ROUNDS, victim)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    assert all(outcome.exit_code for outcome in outcomes)
    found = Checkpoints(tmp_path / name / "checkpoints", keep=1).latest()
    assert found is not None and found.round in (1, 2)
    digests = run_ranks(run_until, again, name, str(tmp_path), ROUNDS, None, found.round)
    assert digests[0] == alone[name][0]


def test_interrupted_in_one_process_and_resumed_gives_the_same_bits(
    alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    for name in CASES:
        algorithm, settings = CASES[name]
        clients = ClientsConfig() if name == "local" else ClientsConfig(per_round=5)
        config = make_config(
            tmp_path / name, TASK, algorithm, **{"client": CLIENT, "clients": clients, "rounds": ROUNDS, **settings}
        )
        calls = 0

        def stop() -> bool:
            nonlocal calls
            calls += 1
            return calls > 45

        with pytest.raises(Interrupted):
            make_runner(config, stop=stop).run()
        runner = make_runner(config)
        found = runner.components.checkpoints.latest()
        assert runner.run(None if found is None else found.round).digest == alone[name][0], name
