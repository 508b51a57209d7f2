"""The weights that a run starts from, which all ranks get from the server."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtorch.comm.base import Communicator
from fedtorch.rounds.components import RunComponents

_MAPPED_BYTES = 1 << 16
"""Smaller ones are sent: to map one takes longer."""


def share_initial(components: RunComponents) -> None:
    """Let the engine have the server's model, all of it: rows added to an embedding are drawn at random.

    Where a worker's ranks share out a model, all ranks of the server's machine read its vectors as they are, so that
    none holds the whole model; all ranks call it alike.
    """
    engine, comm = components.engine, components.comm
    are_parted = components.config.engine.kind != "torch" and max(components.topology.sizes, default=1) > 1
    parts = []
    for part in engine.initial():
        flat = part.view(-1)
        if are_parted and part.nbytes >= _MAPPED_BYTES:
            flat = _mapped(comm, flat)
        else:
            flat = torch.zeros_like(flat, device="cpu") if flat.is_meta else flat
            if len(flat):
                comm.broadcast(flat)
        parts.append(flat.view(part.shape))
    engine.take_initial(parts)


def _mapped(comm: Communicator, flat: Tensor) -> Tensor:
    """The server's vector where all ranks can read it as it is, else a copy of it."""
    vector = comm.vector.another()
    there = vector.make(flat.numel(), flat.dtype)
    if comm.is_server:
        there.copy_(flat)
    there = vector.share(there)
    if not vector.is_shared(there):
        comm.broadcast(there)
    return there
