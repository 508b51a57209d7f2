"""Tests on a GPU, skipped where there is none; FEDTORCH_TEST_DEVICE=cpu runs what they do on the CPU instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tests of this folder run."""
    return torch.device(os.environ.get("FEDTORCH_TEST_DEVICE", "cuda"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_cpu = os.environ.get("FEDTORCH_TEST_DEVICE") == "cpu"
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        wanted = max((mark.args[0] for mark in item.iter_markers("gpus")), default=1)
        if not on_cpu and (found := torch.cuda.device_count()) < wanted:
            item.add_marker(pytest.mark.skip(reason=f"needs {wanted} GPUs; torch finds {found}"))
