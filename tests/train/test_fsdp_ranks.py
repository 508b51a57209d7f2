"""FSDP on several ranks: workers of two and three share a step, and all of it is that of the plain engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import EngineConfig
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine
from fedtorch.train.fsdp import FsdpEngine
from tests.train.test_deepspeed_ranks import gpt2, trained

CPU = torch.device("cpu")


def one_worker(size: int) -> Any:
    with DistributedCommunicator.join(("c",), timeout_s=60) as comm:
        worker = comm.join_worker(tuple(range(size)))
        engine = FsdpEngine(gpt2(), Partition(), CPU, settings=EngineConfig(kind="fsdp"))
        engine.join(worker)
        return trained(engine)


@pytest.mark.processes
@pytest.mark.timeout(280)
@pytest.mark.parametrize("size", [2])
def test_a_step_shared_by_ranks_is_that_of_one(size: int) -> None:
    plain = Engine(gpt2(), Partition(), CPU)
    weights, losses = trained(plain)
    expected = torch.tensor(weights)
    moved = float((expected - plain.initial_shared).norm())
    found = run_ranks(one_worker, size, size, timeout=240)
    for one in found:
        print(float((torch.tensor(one[0]) - expected).norm()) / moved, one[1], losses)
        assert one == found[0]
    assert found[0][1] == pytest.approx(losses, rel=1e-5)
