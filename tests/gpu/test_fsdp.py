"""A worker of two ranks, each with a GPU of its own, under FSDP and NCCL; and one rank with offload."""

from __future__ import annotations

import pytest
import torch
from ranks import run_ranks

pytest.importorskip("deepspeed")

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import EngineConfig
from fedtorch.core.devices import own as own_device
from fedtorch.core.weights import Partition
from fedtorch.train.fsdp import FsdpEngine
from tests.gpu.test_deepspeed import plain_run
from tests.train.test_deepspeed_ranks import gpt2, trained

pytestmark = pytest.mark.processes


def one_worker(kind: str, offload: bool, size: int) -> tuple[str, list[float], list[float]]:
    device = own_device(kind)
    with DistributedCommunicator.join(("c",), timeout_s=60, device=device) as comm:
        comm.preflight({"config": "same"})
        worker = comm.join_worker(tuple(range(size)))
        settings = EngineConfig(kind="fsdp", offload_parameters=offload)
        engine = FsdpEngine(gpt2(), Partition(), device, settings=settings)
        engine.join(worker)
        return "alone" if worker is None else worker.backend, *trained(engine)


def equals_plain(kind: str, offload: bool, size: int) -> str:
    expected, moved, losses = plain_run(kind)
    outcomes = run_ranks(one_worker, size, kind, offload, size, environ={"LOCAL_WORLD_SIZE": str(size)}, timeout=500)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    backend, found, curve = outcomes[0]
    # see test_deepspeed_ranks.py for the bounds
    assert float((torch.tensor(found) - expected).norm()) < 2e-2 * moved
    assert curve == pytest.approx(losses, rel=1e-4)
    return backend


@pytest.mark.gpus(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("offload", [False, True])
def test_a_step_shared_by_two_gpus_is_that_of_one(offload: bool, device: torch.device) -> None:
    backend = equals_plain(device.type, offload, 2)
    assert backend == ("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")


@pytest.mark.timeout(600)
def test_a_step_on_one_gpu_with_offload_is_that_of_plain_torch(device: torch.device) -> None:
    assert equals_plain(device.type, True, 1) == "alone"
