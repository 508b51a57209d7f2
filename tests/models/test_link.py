"""The link between the two ranks of a worker: one message for each increment, and what is no increment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from fedtorch.core.errors import FedtorchError
from fedtorch.models.link import Increment, RankLink


@dataclass
class Loop:
    """A rank that receives what it sent, as a `Peer` gives it."""

    leads: bool = True
    sent: list[tuple[Tensor, list[int]]] = field(default_factory=list)

    def send(self, tensor: Tensor, about: Sequence[int] = ()) -> None:
        self.sent.append((tensor.detach().clone().view(-1), [*about, *[0] * (8 - len(about))]))

    def receive(self) -> tuple[Tensor, list[int]]:
        return self.sent.pop(0)

    def all_gather_floats(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values), list(values)]


def increment(dtype: torch.dtype, rows: int = 3, tokens: int = 5) -> Increment:
    data = torch.randn(2, 2, rows, 4, tokens, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    mask = (torch.arange(tokens) < torch.tensor([[tokens], [1], [0]])[:rows]).to(torch.uint8)
    return Increment(6, True, mask, data.transpose(3, 4).contiguous().transpose(3, 4))  # as a view of a model's


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_an_increment_is_one_message(dtype: torch.dtype) -> None:
    peer = Loop()
    link, given = RankLink(peer), increment(dtype)
    link.send(given)
    assert len(peer.sent) == 1 and peer.sent[0][0].numel() == given.data.nbytes + 15
    found = link.receive()
    assert found.turn == 6 and found.is_last and found.data.dtype == dtype
    assert torch.equal(found.data, given.data) and torch.equal(found.mask, given.mask)
    traffic = link.traffic
    assert (traffic.messages, traffic.physical_bytes) == (2, 2 * (given.data.nbytes + given.overhead_bytes))


def test_an_increment_of_no_rows_is_one_too() -> None:
    link = RankLink(Loop())
    link.send(increment(torch.float32, rows=0))
    found = link.receive()
    assert found.data.shape == (2, 2, 0, 4, 5, 7) and found.mask.shape == (0, 5)


@pytest.mark.parametrize(("place", "other"), [(1, 2), (2, 6), (4, 3), (7, 2), (7, 4), (7, -1)])
def test_what_is_no_increment_is_refused(place: int, other: int) -> None:
    peer = Loop()
    link = RankLink(peer)
    link.send(increment(torch.float32))
    peer.sent[0][1][place] = other
    with pytest.raises(FedtorchError, match="do not walk through the same batch"):
        link.receive()
