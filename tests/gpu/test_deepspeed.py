"""A worker of two ranks, each with a GPU of its own, under DeepSpeed and NCCL."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("deepspeed")

from ranks import run_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import EngineConfig
from fedtorch.core.devices import own as own_device
from fedtorch.core.weights import Partition
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from tests.train.test_deepspeed_ranks import ADAMW, gpt2, trained


def one_worker(kind: str, stage: int) -> tuple[str, list[float], list[float]]:
    device = own_device(kind)
    with DistributedCommunicator.join(("c",), timeout_s=60, device=device) as comm:
        comm.preflight({"config": "same"})
        worker = comm.join_worker((0, 1))
        assert worker is not None
        settings = EngineConfig(kind="deepspeed", stage=stage)
        engine = DeepSpeedEngine(gpt2(), Partition(), device, settings=settings, hp=ADAMW, make_module=gpt2)
        engine.join(worker)
        return worker.backend, *trained(engine)


def plain_run(kind: str) -> tuple[torch.Tensor, float, list[float]]:
    """Weights of the plain engine on one device, how far they moved, and its losses."""
    plain = Engine(gpt2(), Partition(), own_device(kind))
    weights, losses = trained(plain)
    return torch.tensor(weights), float((torch.tensor(weights) - plain.initial_shared).norm()), losses


@pytest.mark.processes
@pytest.mark.gpus(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_step_shared_by_two_gpus_is_that_of_one(stage: int, device: torch.device) -> None:
    kind = device.type
    expected, moved, losses = plain_run(kind)
    environ = {"LOCAL_WORLD_SIZE": "2", "DS_ACCELERATOR": kind}
    first, second = run_ranks(one_worker, 2, kind, stage, environ=environ, timeout=500)
    assert first == second
    backend, found, curve = first
    assert backend == ("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    # see test_deepspeed_ranks.py for the bounds
    assert float((torch.tensor(found) - expected).norm()) < 2e-2 * moved
    assert curve == pytest.approx(losses, rel=1e-4)


def alone(kind: str, stage: int) -> tuple[list[float], list[float]]:
    settings = EngineConfig(kind="deepspeed", stage=stage)
    device = own_device(kind)
    return trained(DeepSpeedEngine(gpt2(), Partition(), device, settings=settings, hp=ADAMW, make_module=gpt2))


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_on_one_gpu_under_deepspeed_is_that_of_plain_torch(stage: int, device: torch.device) -> None:
    kind = device.type
    expected, moved, losses = plain_run(kind)
    environ = {"LOCAL_WORLD_SIZE": "1", "DS_ACCELERATOR": kind}
    ((found, curve),) = run_ranks(alone, 1, kind, stage, environ=environ, timeout=500)
    assert float((torch.tensor(found) - expected).norm()) < 2e-2 * moved
    assert curve == pytest.approx(losses, rel=1e-4)


def test_the_plain_engine_trains_the_same_model_on_the_device(device: torch.device) -> None:
    on_device, on_cpu = (
        trained(Engine(gpt2(), Partition(), where)) for where in (own_device(device.type), torch.device("cpu"))
    )
    assert on_device[1] == pytest.approx(on_cpu[1], rel=1e-4)
    assert "LOCAL_RANK" not in os.environ or os.environ["LOCAL_RANK"] == "0"
