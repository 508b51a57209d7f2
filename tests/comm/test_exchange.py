"""Weights down, reports and updates up: the same bits for any number of ranks, packing and transport."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from fedtorch.comm.base import Communicator, Updates
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.reproducible import WINDOW
from fedtorch.seeds import generator_for
from fedtorch.update import Report, UpdateBuffer
from tests.ranks import run_ranks

NAMES = tuple(f"client-{k}" for k in range(7))
WEIGHTS = (0.3, -0.1, 0.25, 0.0, 0.2, 1.7, 1e-6)
SIZE = 2 * WINDOW + 12_345  # three windows, the last one short


def update_of(name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(size, generator=generator_for(0, "test", name)).to(dtype) * 10.0 ** (len(name) - 9)


def filled(comm: Communicator, homes: dict[str, int], size: int, dtype: torch.dtype) -> tuple[UpdateBuffer, list[Report]]:
    """This rank's buffer and reports; most updates lie in files."""
    folder = Path(f"/tmp/fedtorch-test-{hashlib.sha1(repr(homes).encode()).hexdigest()[:8]}-{comm.rank}")
    local = UpdateBuffer(size, dtype, folder, memory_bytes=2 * size * dtype.itemsize)
    reports = []
    for name in reversed(NAMES):
        if homes[name] == comm.rank:
            grad = update_of(name, size, dtype)
            local.put(name, grad)
            top = float(grad.abs().max()) if size else 0.0
            reports.append(Report(name, examples=3, max_abs=top, norm=float(grad.double().norm())))
    return local, reports
