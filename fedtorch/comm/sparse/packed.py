"""Stretches of sparse vectors as bytes that say where they begin: what owners of slices hand on and gather."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtorch.compression.payload import PayloadError, Sparse, decode_as_sent, encode, read_header


def stretch(sparse: Sparse, start: int, stop: int) -> Sparse:
    """Its numbers from `start` to `stop`, of a vector as long."""
    return Sparse(sparse.size, sparse.indices[start:stop], sparse.values[start:stop])


def pack(first: int, sparse: Sparse) -> Tensor:
    """Numbers at `first` + index, as they lie when all slices are laid end to end: where they begin, and a message.

    A bitmap then covers only the stretch in which there are any. Nothing at all is no bytes.
    """
    if not sparse.indices.numel():
        return torch.zeros(0, dtype=torch.uint8)
    low, high = int(sparse.indices[0]), int(sparse.indices[-1])
    message = encode(Sparse(high - low + 1, sparse.indices - low, sparse.values))
    return torch.cat([torch.tensor([first + low]).view(torch.uint8), message])


def unpack(packed: Tensor, size: int) -> Sparse:
    """Undo `pack` for a vector of `size` numbers.

    Raises:
        PayloadError: it is something else.
    """
    first, message = int(packed[:8].clone().view(torch.int64)), packed[8:].clone()
    span = read_header(message)[2]
    if not 0 <= first <= first + span <= size:
        raise PayloadError(f"numbers {first} to {first + span} of a vector of {size}")
    found = decode_as_sent(message, span)
    return Sparse(size, found.indices + first, found.values)


def joined(stretches: Sequence[Tensor], size: int) -> Sparse:
    """Several stretches, one behind the other."""
    found = [unpack(stretch, size) for stretch in stretches]
    return Sparse(size, torch.cat([each.indices for each in found]), torch.cat([each.values for each in found]))
