"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch starts: one thread per rank (two ranks' threads on shared cores are 20 times slower), no network.
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets; tests that need it are skipped where it does not exist."""
    folder = Path(os.environ.get("FEDTORCH_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found in {folder}; set FEDTORCH_SHARED_DATA")
    return folder.resolve()
