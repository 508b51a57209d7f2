"""FedKSeed and DeComFL: the same bits on any number of ranks, after a resume, a kill, and for who joins late."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import in_one_process, on_this_rank
from harness import interrupt, interrupted_and_resumed, make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.seeds.fedkseed import DeComFL, FedKSeed
from fedtorch.comm.base import Communicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, EvalConfig, SystemConfig
from fedtorch.core.errors import CheckpointError
from fedtorch.rounds.scalar_record import NAME

pytestmark = pytest.mark.long

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), noise=0.7, dropout=0.2, double=False)
CLIENT = ClientConfig(optimizer="sgd", lr=0.002, batch_size=4, steps=6)
POOL = FedKSeed(seeds=32, eps=1e-2)

CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "pool": (POOL, {"eval": EvalConfig(every=1)}),
    "pro": (replace(POOL, pro=True, z="bytes"), {}),
    "median": (replace(POOL, robust="median"), {}),
    "decomfl": (DeComFL(perturbations=2), {}),
    "rate": (POOL, {"client": replace(CLIENT, schedule="linear", schedule_span="run")}),
}
ROUNDS = 4


def run_case(name: str, folder: str, comm: Communicator | None = None, **changes: Any) -> tuple[Any, ...]:
    algorithm, settings = CASES[name]
    settings = {"client": CLIENT, "clients": ClientsConfig(per_round=5), "rounds": ROUNDS, **settings, **changes}
    runner = make_runner(make_config(Path(folder) / name, TASK, algorithm, **settings), comm)
    digest = runner.run().digest
    record = (Path(folder) / name / NAME).read_text() if runner.context.comm.is_server else ""
    return digest, record, runner.context.vectors.weights.tolist()


def run_all_cases(folder: str, system: SystemConfig) -> dict[str, tuple[Any, ...]]:
    return on_this_rank(run_case, CASES, CLIENTS, folder, system)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    return in_one_process(run_case, CASES, tmp_path_factory)


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, {}),
        (3, {"exchange": "reduce"}),
        pytest.param(3, {"exchange": "send", "update_memory_mb": 1}, marks=pytest.mark.slow),
        pytest.param(3, {"server_works": True}, marks=pytest.mark.slow),
        pytest.param(5, {}, marks=pytest.mark.slow),
        pytest.param(5, {"shared_memory": "never"}, marks=pytest.mark.slow),
    ],
    ids=["2", "3-reduce", "3-send", "3-server-works", "5", "5-sockets"],
)
@pytest.mark.processes
def test_any_number_of_ranks_gives_the_bits_of_one_process(
    size: int, changes: dict[str, Any], alone: dict[str, tuple[Any, ...]], tmp_path: Path
) -> None:
    server, *others = run_ranks(run_all_cases, size, str(tmp_path), replace(SystemConfig(), **changes))
    assert server == alone
    for other in others:  # every rank rebuilds the same weights from what it was sent
        assert {name: found[2] for name, found in other.items()} == {name: found[2] for name, found in alone.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("calls", [3, 40, 90])
def test_interrupted_and_resumed_it_ends_with_the_same_bits(
    name: str, calls: int, alone: dict[str, tuple[Any, ...]], tmp_path: Path
) -> None:
    algorithm, settings = CASES[name]
    changes = {"client": CLIENT, "clients": ClientsConfig(per_round=5), "rounds": ROUNDS, **settings}
    config = make_config(tmp_path / name, TASK, algorithm, checkpoint=CheckpointConfig(every=1), **changes)
    assert interrupted_and_resumed(config, calls).digest == alone[name][0]
    assert (tmp_path / name / NAME).read_text() == alone[name][1]


def stopped(folder: Path, rounds: int = 2) -> Any:
    """The config of a run of four rounds that was stopped after `rounds`."""
    config = make_config(folder, TASK, POOL, client=CLIENT, rounds=ROUNDS, checkpoint=CheckpointConfig(every=1))
    interrupt(config, 7 * 6 * rounds + 8 * rounds + 3)
    return config


def resumed(config: Any) -> Any:
    runner = make_runner(config)
    found = runner.components.checkpoints.latest()
    assert found is not None and found.round >= 1
    runner.run(found.round)
    return runner


def test_a_torn_line_and_lines_of_rounds_that_are_done_again_are_cut_off(tmp_path: Path) -> None:
    whole = make_runner(make_config(tmp_path / "whole", TASK, POOL, client=CLIENT, rounds=ROUNDS))
    whole.run()
    expected = (tmp_path / "whole" / NAME).read_text()
    config = stopped(tmp_path / "cut")
    record = tmp_path / "cut" / NAME
    kept = record.read_text()
    assert expected.startswith(kept) and len(kept.splitlines()) > 1
    record.write_text(expected[: len(kept) + 25])
    runner = resumed(config)
    assert record.read_text() == expected
    assert runner.context.vectors.weights.tolist() == whole.context.vectors.weights.tolist()


def test_a_run_without_its_record_goes_on_with_all_sums_in_one_line(tmp_path: Path) -> None:
    config = stopped(tmp_path)
    (tmp_path / NAME).unlink()
    resumed(config)
    lines = (tmp_path / NAME).read_text().splitlines()
    assert '"since":0' in lines[1] and f'"round":{ROUNDS}' in lines[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:1], *lines[2:]], "is of round 2, where 1 belongs"),
        (lambda lines: [lines[0], lines[1].replace('"sums":[', '"sums":[1', 1), *lines[2:]], "line 2 of"),
        (lambda lines: [lines[0].replace('"base":"', '"base":"0'), *lines[1:]], "the base is another one"),
        (lambda lines: [lines[0].replace('"z":"sign"', '"z":"bytes"'), *lines[1:]], "algorithm.z is another one"),
        (lambda lines: ["nothing", *lines[1:]], "is no JSON object"),
        (lambda lines: lines[:1], "ends with round 0"),
        (lambda lines: [], "is no JSON object"),
    ],
    ids=["gap", "edited", "base", "z", "head", "short", "empty"],
)
def test_a_record_that_is_not_that_of_the_run_ends_it_with_code_8(change: Any, message: str, tmp_path: Path) -> None:
    config = stopped(tmp_path)
    path = tmp_path / NAME
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(CheckpointError, match=message) as raised:
        resumed(config)
    assert raised.value.exit_code == 8


def later(folder: str, checkpoints: str, system: SystemConfig) -> Any:
    from fedtorch.comm.distributed import DistributedCommunicator

    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        config = make_config(Path(folder), TASK, POOL, client=CLIENT, rounds=8, system=system)
        runner = make_runner(config, comm)
        digest = runner.run(4).digest
        model = runner.context.vectors.model
        assert model is not None
        _ = runner.context.vectors.weights
        return digest, model.passes


@pytest.mark.processes
def test_who_joins_in_round_5_needs_a_pass_for_each_seed_and_not_for_each_round(tmp_path: Path) -> None:
    one = make_runner(make_config(tmp_path / "one", TASK, POOL, client=CLIENT, rounds=8))
    expected = one.run().digest
    half = make_runner(
        make_config(tmp_path / "run", TASK, POOL, client=CLIENT, rounds=8, checkpoint=CheckpointConfig(every=4))
    )
    half.run()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "round_000008", ignore_errors=True)
    found = run_ranks(later, 3, str(tmp_path / "run"), "", SystemConfig())
    assert [digest for digest, _ in found][:1] == [expected]
    for _, passes in found[1:]:  # all 32 at once for the first four rounds, then what each of four rounds has changed
        assert 32 <= passes <= 32 * 5
