"""What DeepSpeed is told of GPUs, and workers that it could not serve; nothing here needs one."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("deepspeed")

from fedtorch.core.errors import PreflightError
from fedtorch.train.zero import check_worker, import_deepspeed

GPU = torch.device("cuda", 1)


def worker(backend: str) -> Any:
    return SimpleNamespace(size=2, ranks=(3, 4), backend=backend)


def test_ranks_of_a_worker_that_share_a_gpu_are_refused() -> None:
    with pytest.raises(PreflightError, match=r"ranks_per_worker is 2, but the ranks \(3, 4\) .* have no GPU each"):
        check_worker(worker("gloo"), GPU)


def test_ranks_with_gpus_of_their_own_or_none_at_all_and_a_rank_alone_may_train() -> None:
    check_worker(worker("cpu:gloo,cuda:nccl"), GPU)
    check_worker(worker("gloo"), torch.device("cpu"))
    check_worker(None, GPU)


@pytest.mark.parametrize(("device", "index"), [(GPU, "1"), (torch.device("cpu"), "5")])
def test_deepspeed_takes_the_gpu_of_the_engine(
    device: torch.device, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "5")  # on a node of four GPUs
    import_deepspeed(device)
    assert os.environ["LOCAL_RANK"] == index
