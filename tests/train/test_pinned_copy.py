"""Copies between host and device in windows are the plain copies; without a device the windows are ordinary memory."""

from __future__ import annotations

import pytest
import torch

from fedtorch.train import pinned_copy
from fedtorch.train.pinned_copy import PinnedCopier

CPU = torch.device("cpu")


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 32, 33, 1001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_vectors_in_windows_are_copied_whole(length: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_copy, "WINDOW_BYTES", 64)
    windowed = PinnedCopier(CPU, windowed=True, pin=False)
    flat = torch.arange(1, length + 1).to(dtype)
    there = torch.zeros(length, dtype=dtype)
    windowed.upload(flat, there)
    assert torch.equal(there, flat)
    back = windowed.download(there)
    assert torch.equal(back, flat) and back.dtype == dtype and (not length or back.data_ptr() != there.data_ptr())
    out = torch.zeros(length, dtype=dtype)
    assert windowed.download(there, out) is out and torch.equal(out, flat)


def test_a_vector_of_another_dtype_is_converted() -> None:
    for one in (PinnedCopier(CPU), PinnedCopier(CPU, windowed=True, pin=False)):
        one.upload(torch.arange(5, dtype=torch.float64), there := torch.zeros(5))
        assert there.tolist() == [0, 1, 2, 3, 4]


def test_on_the_cpu_no_window_is_ever_made() -> None:
    plain = PinnedCopier(CPU)
    there = torch.zeros(5)
    plain.upload(torch.ones(5), there)
    assert there.tolist() == [1.0] * 5
    copy = plain.download(there)
    assert copy.tolist() == [1.0] * 5 and copy.data_ptr() != there.data_ptr()
    assert not plain._windows


def test_a_part_of_a_longer_vector_is_filled_alone() -> None:
    windowed, longer = PinnedCopier(CPU, windowed=True, pin=False), torch.zeros(30)
    windowed.upload(torch.ones(10), longer[10:20])
    windowed.download(torch.full((5,), 2.0), longer[20:25])
    assert longer.tolist() == [0.0] * 10 + [1.0] * 10 + [2.0] * 5 + [0.0] * 5
