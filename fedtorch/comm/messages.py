"""Clients' compressed updates: their weighted sum, to the same bits as that of dense vectors, and all for all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedtorch.comm.base import Updates
from fedtorch.comm.group import Op
from fedtorch.comm.holder import Holder
from fedtorch.comm.meter import Meter
from fedtorch.comm.reproducible import SumScale, windows
from fedtorch.payload import Sparse

Decoded = Sparse | Tensor
Decode = Callable[[Tensor], Decoded]


def sum_of_messages(
    messages: Sequence[Tensor], weights: Sequence[float], decode: Decode, *, size: int, dtype: torch.dtype
) -> Tensor:
    """Σ weights_i · decoded message_i as a new CPU vector, shape (size,).

    The same whole numbers at the same scale as `Updates.weighted_sum` of the decoded vectors, so the same bits.

    Raises:
        ValueError: a decoded number is not finite. PayloadError: a message is not what it should be.
    """
    terms = [decode(message) for message in messages]
    scale = SumScale.of(weights, [_max_abs(term) for term in terms])
    factors = [scale.scaled(weight) for weight in weights]
    cuts = [start for start, _ in windows(size)]
    bounds = torch.tensor([*cuts, size], dtype=torch.int32)
    places = [torch.searchsorted(t.indices, bounds).tolist() if isinstance(t, Sparse) else None for t in terms]
    out = torch.empty(size, dtype=dtype)
    back = math.ldexp(1.0, -scale.exponent)
    for window, (start, stop) in enumerate(windows(size)):
        total = torch.zeros(stop - start, dtype=torch.int64)
        for term, factor, place in zip(terms, factors, places, strict=True):
            if isinstance(term, Sparse):
                assert place is not None
                part = slice(place[window], place[window + 1])
                # indices of one message differ, so this is an addition for each of them
                total.index_add_(0, term.indices[part].long() - start, _whole(term.values[part], factor))
            else:
                total += _whole(term[start:stop], factor)
        out[start:stop] = total.double().mul_(back)
    return out


def sum_on_server(
    updates: Updates, weights: Sequence[float], decode: Decode, *, size: int, dtype: torch.dtype
) -> Tensor:
    """The same of the updates in an aggregation, each of which is a message."""
    messages = [message.clone() for message in updates]  # each is valid until the next one is asked for
    return sum_of_messages(messages, weights, decode, size=size, dtype=dtype)


def exchange_all(holder: Holder, terms: Sequence[tuple[int, int, float]] | None) -> list[Tensor]:
    """Every rank gets all accepted clients' messages, in one all-gather; all ranks call it.

    terms: on the server (client index, rank, 1.0) of the accepted clients in their order; None elsewhere.
    A rank that hosts fewer clients than another sends as many bytes: gloo gathers equal sizes only.
    """
    group, local, meter = holder.group, holder.local, holder.meter
    if terms is not None:
        holder.announce(Op.ALL, terms)
        agreed = list(terms)
    else:
        _, agreed, _ = holder.hear()
    held = [message for message, _ in holder.agree(Op.ALL, agreed)]
    hosted: Mapping[int, list[int]] = {
        rank: [place for place, term in enumerate(agreed) if term[1] == rank] for rank in range(group.size)
    }
    width = max(map(len, hosted.values()), default=0)
    mine = torch.zeros(width * local.size, dtype=local.dtype)
    for place, message in enumerate(held):
        mine[place * local.size : (place + 1) * local.size] = message
    everyone = [torch.empty_like(mine) for _ in range(group.size)]
    group.all_gather(everyone, mine)
    meter.count("up", "aggregate", physical=mine.nbytes)
    meter.count("down", "aggregate", physical=mine.nbytes * (group.size - 1))
    found: dict[int, Tensor] = {}
    for rank, places in hosted.items():
        found.update(zip(places, everyone[rank].split(local.size) if width else (), strict=False))
    return [found[place] for place in range(len(agreed))]


def count_replicated(meter: Meter, num_bytes: int, clients: int) -> None:
    """Logical bytes of an all-gather: every client sends one message and receives those of all others."""
    meter.count("up", "aggregate", logical=num_bytes * clients, messages=clients)
    copies = clients * (clients - 1)
    meter.count("down", "aggregate", logical=num_bytes * copies, messages=copies)


def _whole(values: Tensor, factor: float) -> Tensor:
    return values.double().mul_(factor).round_().to(torch.int64)


def _max_abs(term: Decoded) -> float:
    values = term.values if isinstance(term, Sparse) else term
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return float(max(high.item(), -low.item()))
