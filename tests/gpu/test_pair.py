"""Keys and values between a user and an assistant rank: from GPU to GPU, and through the host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from smoke_runs import CONFIGS, run_config

from fedtorch.comm.worker import Way, WorkerGroup


def ranks_of_a_pair(folder: str, device: str) -> tuple[str, dict[str, Any], set[str]]:
    """Digest and traffic of FedAssistant's smoke run, and the ways that tensors went from this rank."""
    ways: set[str] = set()
    send = WorkerGroup.send

    def noted(self: WorkerGroup, tensor: torch.Tensor, about: Any = ()) -> None:
        ways.add(Way.of(tensor.device, self.backend).name)
        send(self, tensor, about)

    WorkerGroup.send = noted  # type: ignore[method-assign]
    pair = (f"system.device={device}", "system.ranks_per_worker=2")
    results = run_config(CONFIGS / "smoke" / "feda.yaml", Path(folder), *pair)
    return results["digest"], results["traffic"], ways


def prepared(folder: Path) -> str:
    """A folder with the synthetic dialogs, which several ranks must not make at once."""
    from fedtorch.data.synthetic.dialogs import prepare

    folder.mkdir()
    prepare(folder / "data" / "synthetic_dialog")
    return str(folder)


@pytest.mark.processes
@pytest.mark.gpus(3)
@pytest.mark.timeout(900)
def test_keys_and_values_between_gpus_are_those_that_pass_through_the_host(
    device: torch.device, tmp_path: Path
) -> None:
    found = {}
    for gpus in ("0", "0,1,2"):  # one GPU is shared, so that NCCL cannot be used
        environ = {"LOCAL_WORLD_SIZE": "3", "CUDA_VISIBLE_DEVICES": gpus}
        arguments = (prepared(tmp_path / gpus.replace(",", "")), device.type)
        found[gpus] = run_ranks(ranks_of_a_pair, 3, *arguments, environ=environ, timeout=400)
    expected = ("PINNED", "DEVICE") if device.type == "cuda" else ("HOST", "HOST")
    for rank, (one, other) in enumerate(zip(*found.values(), strict=True)):
        assert one[:2] == other[:2], "the same bits, and as many bytes"
        assert not rank or (one[2], other[2]) == ({expected[0]}, {expected[1]})
