"""The server's vectors whose length changes from round to round: every rank has them, and only what is new travels.

An algorithm names them in `travels.varying`: what was added to an adapter's base, say. They stand beside the vectors
over the layout, are no client's, and nobody sends them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import NO_CLIENT, Packet

LENGTH, KEPT = "/length", "/kept"


class VaryingVectors:
    """One rank's copies, as all ranks have them.

    1. `send` brings the server's to all ranks: a message with the length of each, and how many numbers at its beginning
       are those that all have, then the rest in a broadcast, whose header has its length too.
    2. `adopt` makes them this rank's, once all have them.

    The server's own are replaced, never changed in place, or nobody would notice.
    """

    def __init__(self, names: Iterable[str], dtype: torch.dtype) -> None:
        self.held: dict[str, Tensor] = {name: torch.zeros(0, dtype=dtype) for name in names}
        """flat CPU vectors by name"""

    def send(self, comm: Communicator, server: Mapping[str, Tensor], *, round: int) -> dict[str, Tensor]:
        """The server's vectors on every rank; changes nothing, so it can be called again. All ranks call it.

        server: on the server, the present ones; one that is missing is empty. Ignored elsewhere.
        """
        if not self.held:
            return {}
        heads = []
        if comm.is_server:
            present = {name: server.get(name, held[:0]) for name, held in self.held.items()}
            numbers: dict[str, int | float] = {name + LENGTH: len(flat) for name, flat in present.items()}
            numbers |= {name + KEPT: _in_common(flat, self.held[name]) for name, flat in present.items()}
            heads = [Packet(NO_CLIENT, "numbers", numbers=numbers)]
        (head,) = comm.broadcast_packets(heads, round=round)
        found = {}
        for name, held in self.held.items():
            length, kept = int(head.numbers[name + LENGTH]), int(head.numbers[name + KEPT])
            new = present[name][kept:] if comm.is_server else torch.zeros(length - kept, dtype=held.dtype)
            if length > kept:
                comm.broadcast(new)
            found[name] = present[name] if comm.is_server else torch.cat([held[:kept], new])
        return found

    def adopt(self, found: Mapping[str, Tensor]) -> bool:
        """Take what `send` gave; is it other than before?"""
        is_new = any(len(flat) != len(self.held[name]) or not torch.equal(flat, self.held[name])
                     for name, flat in found.items())  # fmt: skip
        self.held = dict(found)
        return is_new


def _in_common(one: Tensor, other: Tensor) -> int:
    """How many numbers at their beginnings are the same: all of the shorter vector, or none."""
    length = min(len(one), len(other))
    return length if torch.equal(one[:length], other[:length]) else 0
