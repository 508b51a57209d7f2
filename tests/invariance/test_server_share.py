"""A server that trains on its own share: the same bits on any number of ranks, stopped at any moment or killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cases import in_one_process, on_this_rank
from harness import interrupted_and_resumed, make_config, make_runner
from parsing_toy import Toy
from ranks import expect_exit, run_ranks

from fedtorch.algorithms.fedparsing import FedParsing
from fedtorch.algorithms.mean_teacher import Student, Teacher
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, EvalConfig
from fedtorch.tasks.base import SERVER

pytestmark = pytest.mark.long

TASK = Toy(clients={f"c{i}": (0.4 + 0.3 * i, 0.1 * i) for i in range(7)}, rows=5, size=9, dropout=0.3)
NAMES = (*TASK.clients, "part0")
# the server's optimiser and its place in the data are kept from round to round
KEEPING = {SERVER: {"optimizer": "adamw", "lr": 0.05, "optimizer_state": "keep", "epochs": 3}}
CASES: dict[str, tuple[FedParsing, dict[str, Any]]] = {
    "hydranet": (FedParsing(group="hydranet", decoder=("w",)), {}),
    "fedparsing": (FedParsing(group="fedparsing", decoder=("w",)), {}),
    "ema": (FedParsing(teacher=Teacher(lam=0.9, mode="train"), decoder=("w",)), {"per_client": KEEPING}),
    "steps": (FedParsing(teacher=Teacher(every="step", scope="full"), decoder=("w",)), {}),
    "persistent": (FedParsing(student=Student(init="persistent"), decoder=("w",)), {"eval": EvalConfig(every=2)}),
}
ROUNDS = 3


def config_of(name: str, folder: str) -> Any:
    algorithm, settings = CASES[name]
    common = {
        "client": ClientConfig(optimizer="sgd", lr=0.1, batch_size=2, epochs=2),
        "per_client": {SERVER: {"lr": 0.2, "epochs": 2}},
        "clients": ClientsConfig(per_round=4),
        "eval": EvalConfig(every=1, on_start=True),
        "checkpoint": CheckpointConfig(every=1),
        "rounds": ROUNDS,
    }
    return make_config(Path(folder) / name, TASK, algorithm, **{**common, **settings})


def run_case(name: str, folder: str, comm: Communicator | None = None) -> tuple[Any, ...]:
    result = make_runner(config_of(name, folder), comm).run()
    return result.digest, result.best_round, result.scores


def run_all_cases(folder: str) -> dict[str, tuple[Any, ...]]:
    return on_this_rank(run_case, CASES, NAMES, folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    return in_one_process(run_case, CASES, tmp_path_factory)


def test_the_cases_differ(alone: dict[str, tuple[Any, ...]]) -> None:
    assert len({digest for digest, *_ in alone.values()}) == len(CASES)


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3, 6])
def test_any_number_of_ranks_gives_the_bits_of_one_process(
    size: int, alone: dict[str, tuple[Any, ...]], tmp_path: Path
) -> None:
    server, *_ = run_ranks(run_all_cases, size, str(tmp_path))
    assert server == alone


@pytest.mark.parametrize("name", ["ema", pytest.param("persistent", marks=pytest.mark.slow)])
def test_a_signal_at_any_moment_changes_nothing(name: str, alone: dict[str, tuple[Any, ...]], tmp_path: Path) -> None:
    asked = 0

    def never() -> bool:
        nonlocal asked
        asked += 1
        return False

    make_runner(config_of(name, str(tmp_path / "whole")), stop=never).run()
    assert asked > 20
    for moment in range(1, asked + 1, 4):
        result = interrupted_and_resumed(config_of(name, str(tmp_path / str(moment))), moment - 1)
        assert (result.digest, result.best_round, result.scores) == alone[name], f"stopped at the {moment}th time"


def run_until(folder: str, die_at: int | None = None, resume: int | None = None) -> str:
    """One of several ranks; rank `die_at` kills itself as soon as round 2 is done but for the server's training."""
    with DistributedCommunicator.join(NAMES, timeout_s=60) as comm:

        def stop() -> bool:
            if comm.rank == die_at and runner.context.round == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        runner = make_runner(config_of("ema", folder), comm, stop=stop)
        return runner.run(resume).digest


@pytest.mark.processes
def test_killed_and_resumed_on_another_number_of_ranks_gives_the_same_bits(
    alone: dict[str, tuple[Any, ...]], tmp_path: Path
) -> None:
    outcomes = expect_exit(run_until, 3, str(tmp_path), 2)
    assert outcomes[2].exit_code == -signal.SIGKILL
    found = Checkpoints(tmp_path / "ema" / "checkpoints", keep=1).latest()
    assert found is not None and found.round == 1
    digests = run_ranks(run_until, 2, str(tmp_path), None, found.round)
    assert digests[0] == alone["ema"][0]
