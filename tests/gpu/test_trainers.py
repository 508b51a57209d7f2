"""Trainers of others on a GPU: the engine's own, one of them, and all put back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from trained_otherwise import ARGS, job_of, runner_of

from fedtorch.config.schema import SystemConfig
from fedtorch.train.settings import TrainerConfig


@pytest.mark.parametrize("args", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_it_trains_where_the_engine_is_and_twice_the_same(
    args: dict[str, bool], device: torch.device, tmp_path: Path
) -> None:
    trainer = TrainerConfig("transformers", {**ARGS, **args})
    runner = runner_of(tmp_path, trainer, system=SystemConfig(device=device.type))
    job = job_of(runner)
    places = [parameter.data_ptr() for parameter in job.engine.module.parameters()]
    found = []
    for _ in range(2):
        torch.manual_seed(random.randrange(1000))
        curve = job.train(job.received["weights"])
        assert len(curve) == 3
        found.append(job.engine.snapshot())
    assert [parameter.data_ptr() for parameter in job.engine.module.parameters()] == places
    assert device.type == "cpu" or torch.cuda.current_device() == (device.index or 0)
    assert torch.allclose(*found, rtol=0, atol=1e-5)
