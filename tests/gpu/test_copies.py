"""Vectors between the host's memory and the GPU, through page-locked windows."""

from __future__ import annotations

import pytest
import torch

from fedtorch.comm.transport.device import SLOTS, WINDOW_BYTES, Staged
from fedtorch.train import pinned_copy
from fedtorch.train.pinned_copy import PinnedCopier, to_device


@pytest.mark.parametrize("length", [0, 1, 1000, (pinned_copy.WINDOW_BYTES // 4) * 3 + 17])
def test_a_vector_goes_there_and_back(length: int, device: torch.device) -> None:
    copies, flat = PinnedCopier(device), torch.randn(length)
    there = torch.zeros(length, device=device)
    copies.upload(flat, there)
    assert torch.equal(there.cpu(), flat)
    back = copies.download(there)
    assert back.device.type == "cpu" and torch.equal(back, flat)


def test_the_host_may_write_at_once_and_reads_what_was_computed(device: torch.device) -> None:
    copies, size = PinnedCopier(device), pinned_copy.WINDOW_BYTES  # four windows of fp32
    flat, there = torch.ones(size), torch.zeros(size, device=device)
    for turn in range(5):
        copies.upload(flat, there)
        flat.fill_(turn + 2)
        for _ in range(20):
            there.add_(1)  # queued on the device, and not done when the copy is asked for
        out = copies.download(there, torch.zeros(size))
        assert out.unique().tolist() == [turn + 21]


def test_a_batch_arrives_whole_though_it_is_not_waited_for(device: torch.device) -> None:
    batch = {"ids": torch.arange(100_000), "mask": [torch.ones(3), torch.zeros(0)], "name": "x"}
    moved = to_device(batch, device)
    assert torch.equal(moved["ids"].cpu(), torch.arange(100_000)) and moved["name"] == "x"
    assert moved["mask"][0].device.type == device.type and moved["mask"][0].tolist() == [1, 1, 1]


class _Mirror:
    """A process group of one that gives back what is sent, in order."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> _Mirror:
        self.sent.append(tensors[0].clone())
        return self

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> _Mirror:
        tensors[0].copy_(self.sent.pop(0))
        return self

    def abort(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        pass


def test_payloads_pass_through_the_windows_of_the_device(device: torch.device) -> None:
    pin = device.type == "cuda"
    transport = Staged(_Mirror(), device, pin=pin, timeout_s=10, watch=lambda: None)
    vectors = [torch.randn(WINDOW_BYTES // 4 * SLOTS + 5), torch.randn(7).double(), torch.arange(9, dtype=torch.uint8)]
    for sending in [transport.send(vector, 0) for vector in vectors]:
        sending.wait()
    received = [torch.zeros_like(vector) for vector in vectors]
    for receiving in [transport.receive(vector, 0) for vector in received]:
        receiving.wait()
    assert all(torch.equal(one, other) for one, other in zip(vectors, received))
    transport.drop()
