"""Clients' compressed updates: their weighted sum, to the same bits as that of dense vectors, and all for all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.comm.sums.aggregation import Aggregation, Request, Term
from fedtorch.comm.sums.checks import norm_problem
from fedtorch.comm.sums.reproducible import CHUNK, Accumulator, SumScale
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.meter import Meter
from fedtorch.comm.transport.windows import SUM_DTYPE
from fedtorch.compression.payload import PayloadError, Sparse
from fedtorch.core.errors import RefusedUpdatesError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.sparse_kernels import add_scattered, sum_scattered
from fedtorch.core.update import Report

Decoded = Sparse | Tensor
Decode = Callable[[Tensor], Decoded]


@dataclass(frozen=True)
class Received:
    """A message and what it stands for."""

    message: Tensor
    """As it came; a dense vector is decoded from it again when it is added, one at a time."""
    norm: float
    """Of the vector that it stands for."""
    max_abs: float
    """Largest absolute value in that vector."""
    sparse: Sparse | None
    """That vector; None if it is dense."""

    @classmethod
    def of(cls, message: Tensor, decode: Decode) -> Received:
        """Raises PayloadError: the message is not what it should be."""
        decoded = decode(message)
        sparse = decoded if isinstance(decoded, Sparse) else None
        values = decoded.values if isinstance(decoded, Sparse) else decoded
        return cls(message, *norm_and_max(widened(values)), sparse)


def read_messages(reports: Sequence[Report], messages: Sequence[Tensor], decode: Decode) -> list[Received]:
    """The accepted clients' messages, each compared with what its client reported.

    Raises:
        RefusedUpdatesError: some are no messages, or not what their clients reported; names all of them.
    """
    found: list[Received] = []
    refused: dict[str, str] = {}
    for report, message in zip(reports, messages, strict=True):
        try:
            found.append(Received.of(message, decode))
            problem = norm_problem(report, found[-1].norm, found[-1].max_abs)
        except PayloadError as error:
            problem = f"its message cannot be read: {error}"
        if problem:
            refused[report.client] = problem
    if refused:
        raise RefusedUpdatesError(refused)
    return found


def sum_of_messages(messages: Sequence[Tensor], weights: Sequence[float], decode: Decode, out: Tensor) -> Tensor:
    """Σ weights_i · decoded message_i, written into the flat CPU vector `out`, which is returned.

    The same whole numbers at the same scale as `AcceptedUpdates.weighted_sum` of the decoded vectors, so the same bits.

    Raises:
        ValueError: a decoded number is not finite. PayloadError: a message is not what it should be.
    """
    return sum_of_received([Received.of(message, decode) for message in messages], weights, decode, out)


def sum_of_received(terms: Sequence[Received], weights: Sequence[float], decode: Decode, out: Tensor) -> Tensor:
    """Sum of messages that were read already."""
    scale = SumScale.of(weights, [term.max_abs for term in terms])
    if all(term.sparse is not None for term in terms):
        sparse = [term.sparse for term in terms if term.sparse is not None]
        return sum_sparse(sparse, weights, scale, out)
    accumulator = Accumulator(out.numel(), out.dtype)
    accumulator.reset(scale)
    for term, weight in zip(terms, weights, strict=True):
        decoded = decode(term.message)  # one dense vector at a time, however many messages there are
        accumulator.add(decoded.dense(out.dtype) if isinstance(decoded, Sparse) else decoded, weight)
    return accumulator.result(out)


def sum_sparse(terms: Sequence[Sparse], weights: Sequence[float], scale: SumScale, out: Tensor) -> Tensor:
    """The sum of sparse terms into `out`, chunk by chunk, so that what is added to stays in the cache.

    Not whole numbers are added but the multiples of a power of two that they stand for, which is as exact.
    """
    size, back = out.numel(), np.float64(math.ldexp(1.0, -scale.exponent))
    factors = [np.float64(scale.scaled(weight)) for weight in weights]
    pairs = [(_readable(term.values), term.indices.numpy()) for term in terms]
    if sum_scattered(pairs, factors, back, out.numpy(), CHUNK):
        return out
    may_vanish = back < torch.finfo(out.dtype).smallest_normal  # can a sum be too small for `out`?
    starts = torch.tensor([*range(0, size, CHUNK), size])
    borders = [torch.searchsorted(term.indices, starts.to(term.indices.dtype)).tolist() for term in terms]
    total = torch.zeros(min(size, CHUNK), dtype=SUM_DTYPE)
    for chunk, start in enumerate(range(0, size, CHUNK)):
        for (numbers, own), factor, border in zip(pairs, factors, borders, strict=True):
            part = slice(border[chunk], border[chunk + 1])
            add_scattered(numbers[part], own[part], total.numpy(), factor=factor, back=back, start=start)
        target = out[start : start + CHUNK]
        target.copy_(total[: target.numel()])
        if may_vanish:
            target.add_(0.0)  # as in `Accumulator.result`: zero is never -0.0
        total.zero_()
    return out


def _readable(values: Tensor) -> npt.NDArray[Any]:
    return widened(values).numpy()  # numpy has no bf16, and sums have no loop in C for fp16


def widened(values: Tensor) -> Tensor:
    """16-bit values as fp32, others as they are."""
    return values.float() if values.dtype.itemsize < 4 else values


def all_gather_updates(aggregation: Aggregation, terms: Sequence[Term] | None) -> list[Tensor]:
    """Every rank gets all accepted clients' messages, in one all-gather; all ranks call it.

    terms: on the server the accepted clients in their order, each of weight 1; None elsewhere.
    A rank that hosts fewer clients than another sends as many bytes: gloo gathers equal sizes only.
    """
    group, local, meter = aggregation.group, aggregation.local, aggregation.meter
    if terms is None:
        terms = aggregation.receive_request().terms
    else:
        aggregation.broadcast_request(Request(Op.ALL_GATHER, terms))
    own = [message for message, _ in aggregation.agree(Op.ALL_GATHER, terms)]
    hosted: Mapping[int, list[int]] = {
        rank: [place for place, term in enumerate(terms) if term.rank == rank] for rank in group.members
    }
    width = max(map(len, hosted.values()), default=0)
    mine = torch.zeros(width * local.size, dtype=local.dtype)
    for place, message in enumerate(own):
        mine[place * local.size : (place + 1) * local.size] = message
    everyone = [torch.empty_like(mine) for _ in range(group.size)]
    group.all_gather(everyone, mine)
    meter.count("up", "aggregate", physical=mine.nbytes)
    meter.count("down", "aggregate", physical=mine.nbytes * (group.size - 1))
    found: dict[int, Tensor] = {}
    for theirs, places in zip(everyone, hosted.values(), strict=True):
        found.update(zip(places, theirs.split(local.size) if width else (), strict=False))
    return [found[place] for place in range(len(terms))]


def count_replicated(meter: Meter, num_bytes: int, clients: int) -> None:
    """Logical bytes of an all-gather: every client sends one message and receives those of all others."""
    meter.count("up", "aggregate", logical=num_bytes * clients, messages=clients)
    copies = clients * (clients - 1)
    meter.count("down", "aggregate", logical=num_bytes * copies, messages=copies)
