"""Vectors that travel in fewer bits: layouts, numbers, and updates as messages beside the vectors they stand for."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedtorch.comm.local import LocalUpdates
from fedtorch.comm.sparse.packed_updates import PackedUpdates
from fedtorch.compression.compressors import Compressor
from fedtorch.compression.payload import HEADER_BYTES
from fedtorch.core.norms import norm_and_max
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import Layout


def layout_of(size: int) -> Layout:
    return Layout(("w",), ((size,),), torch.float32)


def normal(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def opened(vectors: dict[str, Tensor], folder: Path, rule: Compressor) -> tuple[PackedUpdates, LocalUpdates]:
    """The same vectors as messages, and as they stand for."""
    layout = layout_of(len(next(iter(vectors.values()))))
    packed = UpdateBuffer(HEADER_BYTES + rule.message_bytes(layout), torch.uint8, folder / "packed", 1 << 20)
    dense = UpdateBuffer(layout.size, torch.float32, folder / "dense", 1 << 20)
    reports = []
    for seed, (name, flat) in enumerate(vectors.items()):
        message = rule.compress(flat, layout, seed=seed)
        found = rule.decompress(message, layout)
        packed.put(name, message)
        dense.put(name, found)
        norm, largest = norm_and_max(found)
        reports.append(Report(name, norm=norm, max_abs=largest))
    messages = LocalUpdates(reports, packed, 3)
    updates = PackedUpdates(messages, packed, lambda client, message: rule.decompress(message, layout), layout)
    return updates, LocalUpdates(reports, dense, 3)
