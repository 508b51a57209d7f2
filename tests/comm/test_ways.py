"""How a tensor goes from one rank of a worker to the other, as far as that can be told without a GPU."""

from __future__ import annotations

import pytest
import torch

from fedtorch.comm.worker import Way


@pytest.mark.parametrize(
    ("device", "backend", "way"),
    [
        ("cpu", "gloo", Way.HOST),
        ("cpu", "cpu:gloo,cuda:nccl", Way.HOST),
        ("cuda:1", "gloo", Way.PINNED),
        ("cuda:1", "cpu:gloo,cuda:nccl", Way.DEVICE),
    ],
)
def test_tensors_on_gpus_go_over_nccl_where_both_ranks_have_it(device: str, backend: str, way: Way) -> None:
    assert Way.of(torch.device(device), backend) is way


def test_a_rank_without_a_gpu_receives_into_ordinary_memory() -> None:
    for way in (Way.HOST, Way.PINNED):
        assert way.empty(3, torch.uint8).device.type == "cpu"
