"""Copies of many tensors at once, between the host's memory and a device in as few pieces as pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

PIECE_BYTES = 16 << 20
"""Bytes of small tensors that travel together; a larger one is a piece of its own."""


def moved(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies of the tensors on `device`, each in memory of its own; between host and device in few pieces.

    A copy from or to a device costs some 10 µs however small it is, and the host waits for one from there. So small
    tensors of one dtype that follow each other are put together, up to `PIECE_BYTES`, and taken apart again on the
    other side.
    """
    copies: list[Tensor] = []
    for piece in _pieces(tensors, device):
        if len(piece) == 1:
            copies.append(piece[0].detach().to(device, copy=True))
            continue
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in piece]).to(device)
        parts = flat.split([tensor.numel() for tensor in piece])
        copies += [part.view(tensor.shape).clone() for part, tensor in zip(parts, piece, strict=True)]
    return copies


def _pieces(tensors: Sequence[Tensor], device: torch.device) -> Iterator[list[Tensor]]:
    """The tensors in order, those that travel together in one list."""
    piece, size = list[Tensor](), 0
    for tensor in tensors:
        fits = piece and (tensor.device, tensor.dtype) == (piece[0].device, piece[0].dtype)
        if not fits or tensor.device == device or size + tensor.nbytes > PIECE_BYTES:
            if piece:
                yield piece
            piece, size = [], 0
        piece.append(tensor)
        size += tensor.nbytes
    if piece:
        yield piece
