"""What DeepSpeed is told of GPUs, and workers that it could not serve; nothing here needs one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("deepspeed")

from fedtorch.core.errors import PreflightError
from fedtorch.train.split_engine import check_worker
from fedtorch.train.zero import Harmless, import_deepspeed

pytestmark = pytest.mark.long

GPU = torch.device("cuda", 1)


def worker(backend: str) -> Any:
    return SimpleNamespace(size=2, ranks=(3, 4), backend=backend)


def test_ranks_of_a_worker_that_share_a_gpu_are_refused() -> None:
    with pytest.raises(PreflightError, match=r"ranks_per_worker is 2, but the ranks \(3, 4\) .* have no GPU each"):
        check_worker(worker("gloo"), GPU, "deepspeed")


def test_ranks_with_gpus_of_their_own_or_none_at_all_and_a_rank_alone_may_train() -> None:
    check_worker(worker("cpu:gloo,cuda:nccl"), GPU, "deepspeed")
    check_worker(worker("gloo"), torch.device("cpu"), "deepspeed")
    check_worker(None, GPU, "deepspeed")


@pytest.mark.parametrize(("device", "index"), [(GPU, "1"), (torch.device("cpu"), "5")])
def test_deepspeed_takes_the_gpu_of_the_engine(
    device: torch.device, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "5")  # on a node of four GPUs
    import_deepspeed(device)
    assert os.environ["LOCAL_RANK"] == index


@pytest.mark.parametrize(
    "said",
    [
        "**** You are using ZeRO with an untested optimizer, proceed with caution *****",
        "A module has unknown inputs or outputs type (<class 'Cache'>) and the tensors embedded in it cannot be",
    ],
)
def test_its_two_harmless_warnings_are_explained_in_the_log_file_alone(
    said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    import_deepspeed(torch.device("cpu"))
    import_deepspeed(torch.device("cpu"))
    its, shown = logging.getLogger("DeepSpeed"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    its.addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG, "fedtorch.train.zero"):
            its.warning(said)
            its.warning("the disk is slow")
    finally:
        its.removeHandler(handler)
    assert shown == ["the disk is slow"]
    (record,) = (each for each in caplog.records if each.name == "fedtorch.train.zero")
    assert record.levelno == logging.DEBUG and "those of plain torch (tests/train/" in record.getMessage()


def test_the_installed_deepspeed_still_says_these_words() -> None:
    """Else nothing is kept from the terminal, and the filter can go."""
    import deepspeed.runtime.engine as engine
    import deepspeed.runtime.zero.parameter_offload as offload

    written = "".join(Path(str(module.__file__)).read_text() for module in (engine, offload))
    assert all(words in written for words in Harmless.REASONS)
