"""In 16 bits, too: the same bits for any number of ranks, interrupted or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from torch import Tensor, nn
from toy import Point, Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, Config, EngineConfig, EvalConfig, PartitionConfig
from fedtorch.core.errors import Interrupted
from fedtorch.train.precision import has_fp16

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Product(Quadratic):
    """With a matrix product, which autocast computes in 16 bits: ½·Σ (a·w − b)²; dropout as ever."""

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        assert isinstance(model, Point)
        point = nn.functional.dropout(torch.cat([model.w, model.head]), self.dropout, model.training)
        made = batch[:, :1] @ point.unsqueeze(0)
        return (0.5 * (made.float() - batch[:, 1:]) ** 2).sum(), len(batch)


CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(5)}
TASK = Product(
    clients=CLIENTS, start=tuple(0.1 * i for i in range(20)), head=(0.5,), noise=0.7, dropout=0.2, double=False
)
ADAM = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep", max_grad_norm=1.0)
HEAD = PartitionConfig(private=("head",))
# fp16 with so large a scale that the first steps of every client are left out
CASES: dict[str, tuple[Algorithm, EngineConfig]] = {
    "fp32": (FedAvg(), EngineConfig()),
    "bf16": (FedAvg(), EngineConfig(precision="bf16")),
    "fp16": (FedProx(mu=0.1), EngineConfig(precision="fp16", initial_scale_power=17)),
}
NAMES = [name for name in CASES if name != "fp16" or has_fp16(torch.device("cpu"))]


def config_of(name: str, folder: Path | str) -> Config:
    algorithm, engine = CASES[name]
    settings = {"client": ADAM, "partition": HEAD, "engine": engine, "rounds": 3}
    saving = {"eval": EvalConfig(every=1, split="dev"), "checkpoint": CheckpointConfig(every=1)}
    return make_config(Path(folder) / name, TASK, algorithm, **settings, **saving)


def outcome(config: Config, comm: Communicator | None = None, resume: int | None = None) -> tuple[str, Any]:
    result = make_runner(config, comm).run(resume)
    return result.digest, result.scores


def all_cases(folder: str) -> dict[str, tuple[str, Any]]:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        return {name: outcome(config_of(name, folder), comm) for name in NAMES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: outcome(config_of(name, folder)) for name in NAMES}


@pytest.mark.processes
def test_ranks_give_the_bits_of_one_process(alone: dict[str, tuple[str, Any]], tmp_path: Path) -> None:
    assert run_ranks(all_cases, 3, str(tmp_path))[0] == alone
    assert len({digest for digest, _ in alone.values()}) == len(NAMES)  # the precision was used


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_and_resumed_gives_the_same_bits(
    name: str, alone: dict[str, tuple[str, Any]], tmp_path: Path
) -> None:
    config, calls = config_of(name, tmp_path), 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 70

    with pytest.raises(Interrupted):
        make_runner(config, stop=stop).run()
    found = make_runner(config).components.checkpoints.latest()
    assert found is not None and 0 < found.round < 3
    assert outcome(config, resume=found.round) == alone[name]


@pytest.mark.skipif("fp16" not in NAMES, reason="this CPU has no fp16")
def test_steps_that_were_left_out_are_told(tmp_path: Path) -> None:
    runner, reports = make_runner(config_of("fp16", tmp_path)), []
    train = runner.trainer._train

    def watch(*args: Any) -> Any:
        reports.append(train(*args))
        return reports[-1]

    runner.trainer._train = watch  # type: ignore[method-assign]
    runner.run()
    assert all(report.status == "ok" for report in reports)
    assert 0 < max(report.extra.get("left_out", 0) for report in reports) < max(report.steps for report in reports)
