"""Rules over factors: the same bits for any number of ranks, interrupted or not, and for parts that travel or all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from displaced import displaced
from factors import Regression
from harness import interrupted_and_resumed, make_config, make_runner
from ranks import run_ranks

from fedtorch.algorithms.adapters.hetlora import HetLoRA
from fedtorch.algorithms.adapters.ranks import FlexLoRA
from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.adapters.stacks import FedEx, FLoRA
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    EvalConfig,
    PartitionConfig,
    SystemConfig,
)

pytestmark = pytest.mark.long

TASK = Regression({f"c{i}": (1.0 + i, (-1.0) ** i, 5 + 3 * i) for i in range(6)})
CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedit": (FedAvg(), {}),
    "ffa": (FedAvg(), {"partition": PartitionConfig(frozen=("*lora_A*",))}),
    "fedsa": (FedAvg(), {"partition": PartitionConfig(private=("*lora_B*",))}),
    "rolora": (RoLoRA(), {"eval": EvalConfig(every=2)}),
    "hetlora": (HetLoRA(ranks={"c1": 1, "c4": 1}), {}),
    "hetlora_decay": (HetLoRA(ranks={"c1": 1}, rank_decay=0.5, rank_penalty=100.0), {}),
    "flora": (FLoRA(ranks={"c1": 1}, added_rank=4), {"eval": EvalConfig(every=2)}),
    "fedex": (FedEx(ranks={"c4": 1}), {}),
    "flexlora": (FlexLoRA(ranks={"c0": 1, "c3": 1}), {}),
}


def config_of(name: str, folder: str, **changes: Any) -> Any:
    algorithm, settings = CASES[name]
    settings = {"client": ClientConfig(optimizer="adam", lr=0.05, batch_size=4), "rounds": 3,
                "clients": ClientsConfig(per_round=4), "checkpoint": CheckpointConfig(every=1), **settings}  # fmt: skip
    return make_config(Path(folder) / name, TASK, algorithm, **{**settings, **changes})


PARTS = ("rolora", "hetlora", "hetlora_decay", "flexlora", "flora", "fedex")
"""Those of which not everything travels."""


def run_all(
    folder: str, comm: Communicator | None = None, names: Iterable[str] = CASES, **changes: Any
) -> dict[str, Any]:
    found = {}
    for name in names:
        runner = make_runner(config_of(name, folder, **changes), comm)
        meter = runner.context.comm.meter  # of all cases, if they have one communicator
        before = meter.totals().get("aggregate/bytes_up", 0)
        found[name] = runner.run().digest, meter.totals().get("aggregate/bytes_up", 0) - before
    return found


def on_ranks(folder: str, system: SystemConfig) -> dict[str, Any]:
    with DistributedCommunicator.join(tuple(TASK.clients), timeout_s=60, exchange=system.exchange) as comm:
        return run_all(folder, comm, PARTS, system=system)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_all(str(tmp_path_factory.mktemp("alone")))


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["reduce", pytest.param("send", marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_bits_of_one_process(
    exchange: Any, alone: dict[str, Any], tmp_path: Path
) -> None:
    server, *_ = run_ranks(on_ranks, 3, str(tmp_path), SystemConfig(exchange=exchange))
    assert server == {name: alone[name] for name in PARTS}


@pytest.mark.parametrize("calls", [25, 50])
def test_interrupted_and_resumed_gives_the_same_bits(calls: int, alone: dict[str, Any], tmp_path: Path) -> None:
    for name in CASES:
        assert interrupted_and_resumed(config_of(name, str(tmp_path)), calls).digest == alone[name][0], name


def test_parts_that_travel_are_all_that_matters(
    alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoLoRA and unlike ranks with whole vectors on the way."""
    for rule in (RoLoRA, HetLoRA, FlexLoRA, FLoRA, FedEx):
        given = rule.places

        def whole(self: Any, way: str, *about: Any, given: Any = given) -> Any:
            return given(self, way, *about) if way == "received" else None

        monkeypatch.setattr(rule, "places", whole)
    for name, (digest, sent) in run_all(str(tmp_path), names=PARTS).items():
        assert digest == alone[name][0] and sent > alone[name][1]


@pytest.mark.parametrize("name", CASES)
def test_vectors_that_lie_elsewhere_in_memory_give_the_same_bits(
    name: str, alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with displaced(8, monkeypatch) as mode:
        assert run_all(str(tmp_path), names=[name])[name] == alone[name]
    assert mode.count > 20
