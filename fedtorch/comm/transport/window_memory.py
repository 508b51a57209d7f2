"""Windows of payloads that are filled and read where they are, if the ranks share memory (`shared`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.node_sums import NodeSums, Received
from fedtorch.comm.transport.process_group import Transfer, Work
from fedtorch.comm.transport.shared import Shared
from fedtorch.core.kept_vectors import Lender


class OutgoingWindows:
    """Lends windows to fill and send to the server: in memory that it can read as it is, while there is any."""

    def __init__(self, group: Group, kept: Lender) -> None:
        """kept: lends the others."""
        self._kept = kept
        self._slots: list[Tensor] = group.wait(group.begin(_slots))

    def lend(self, size: int, dtype: torch.dtype) -> Tensor:
        """Lend a window to fill: one that the server can read where it is, while there is any."""
        if self._slots and size * dtype.itemsize <= len(self._slots[-1]):
            return self._slots.pop()[: size * dtype.itemsize].view(dtype)
        return self._kept.lend(size, dtype)


def start_take(group: Group, buffer: Tensor, rank: int) -> Transfer:
    """Begin to receive what `rank` sends next; `Group.wait` gives it, in `buffer` or where that rank has it.

    There it stays until `give_back`, or until the next one is waited for.
    """
    place = group.members.index(rank)

    def begin(payloads: Any) -> Work:
        return (
            payloads.take(buffer, place)
            if isinstance(payloads, Shared | NodeSums)
            else Received(payloads, buffer, place)
        )

    return group.begin(begin)


def give_back(group: Group) -> None:
    """Say that what was taken last has been read."""
    group.wait(group.begin(_give_back))


def _slots(payloads: Any) -> Work:
    return _Done(payloads.slots() if isinstance(payloads, Shared | NodeSums) else [])


def _give_back(payloads: Any) -> Work:
    if isinstance(payloads, Shared | NodeSums):
        payloads.give_back()
    return _Done(None)


@dataclass
class _Done:
    """Work that is done, and what came of it."""

    found: Any
    """What `wait` and `result` give."""

    def wait(self) -> Any:
        return self.found
