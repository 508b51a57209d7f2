"""Numbers from the server to one rank alone."""

from __future__ import annotations

from torch import Tensor

from fedtorch.comm.transport.group import Group


def tell(group: Group, rank: int, numbers: Tensor) -> None:
    """On the server: send `numbers` to `rank`, which takes them by `told`; nothing, if there are none."""
    if len(numbers):
        group.wait(group.begin(lambda gloo: gloo.send(numbers, group.members.index(rank)), numbers=True))


def told(group: Group, numbers: Tensor) -> Tensor:
    """Elsewhere: what the server tells this rank, as many numbers of that dtype; written there and returned."""
    if len(numbers):
        group.wait(group.begin(lambda gloo: gloo.receive(numbers, 0), numbers=True))
    return numbers
