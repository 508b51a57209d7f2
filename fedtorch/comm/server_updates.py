"""The server's side of an aggregation: the three transports of one sum, and updates one at a time.

`aggregation` has the whole protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedtorch.comm.aggregation import IN_FLIGHT, Aggregation, Request, Term
from fedtorch.comm.base import AcceptedUpdates
from fedtorch.comm.group import Transfer
from fedtorch.comm.header import Op
from fedtorch.comm.local_updates import reduce_sum
from fedtorch.comm.reproducible import SUM_DTYPE, WINDOW, Accumulator, SumScale, windows
from fedtorch.core.update import Report

Exchange = Literal["auto", "reduce", "send"]


class DistributedUpdates(AcceptedUpdates):
    """Updates that are on many ranks, the server's own included."""

    def __init__(
        self,
        aggregation: Aggregation,
        reports: Sequence[Report],
        places: Mapping[str, tuple[int, int]],
        exchange: Exchange,
    ) -> None:
        """places: client -> (index in the manifest, rank that has its update)."""
        super().__init__(reports, aggregation.local.size, aggregation.local.dtype)
        self._aggregation, self._group = aggregation, aggregation.group
        self._places, self._exchange = places, exchange
        self._receiving: tuple[Transfer, Tensor] | None = None

    def finish(self, op: Op) -> None:
        """Tell the other ranks that the server is done, or has given up."""
        self._finish_receiving()
        self._aggregation.broadcast_request(Request(op))

    def __iter__(self) -> Iterator[Tensor]:
        # Two buffers: while the caller works on one update the next one is received in the other.
        buffers = (torch.empty(self.size, dtype=self.dtype), torch.empty(self.size, dtype=self.dtype))
        following = self._start_receiving(0, buffers[0]) if self.reports else None
        for place in range(len(self.reports)):
            self._finish_receiving()
            update, following = following, None
            if place + 1 < len(self.reports):
                following = self._start_receiving(place + 1, buffers[(place + 1) % 2])
            assert update is not None
            yield update

    def _start_receiving(self, place: int, buffer: Tensor) -> Tensor:
        """Begin to receive the update of the report at `place` into `buffer`; the server's own needs no buffer."""
        self._finish_receiving()
        terms = [self._term(self.reports[place], 1.0)]
        self._aggregation.broadcast_request(Request(Op.SEND_ONE, terms))
        for own, _ in self._aggregation.agree(Op.SEND_ONE, terms):
            return own
        self._receiving = self._group.start_receive(buffer, terms[0].rank), buffer
        self._aggregation.meter.count("up", "aggregate", physical=buffer.nbytes)
        return buffer

    def _finish_receiving(self) -> None:
        """Wait for an update that is on its way: its sender takes part in nothing else until then."""
        if self._receiving is not None:
            (transfer, _), self._receiving = self._receiving, None
            self._group.wait(transfer)

    def _term(self, report: Report, weight: float) -> Term:
        return Term(*self._places[report.client], weight)

    def _sum(self, scale: SumScale, weighted: list[tuple[Report, float]]) -> Tensor:
        self._finish_receiving()
        terms = [self._term(report, weight) for report, weight in weighted]
        op = self._transport(terms)
        self._aggregation.broadcast_request(Request(op, terms, scale))
        own = self._aggregation.agree(op, terms)
        out = torch.empty(self.size, dtype=self.dtype)
        remote = [(term.rank, term.weight) for term in terms if term.rank != 0]
        if op is Op.REDUCE:
            reduce_sum(self._aggregation, own, scale, out)
        elif op is Op.SEND_SUMS:
            self._receive([(rank, None) for rank in _distinct(remote)], own, scale, out)
        else:
            self._receive(remote, own, scale, out)
        return out

    def _transport(self, terms: Sequence[Term]) -> Op:
        """The one in which the busiest rank moves the fewest bytes per element.

        SEND_UPDATES: the server receives every remote client's update. SEND_SUMS: the server receives one sum, of 8
        bytes, from every other rank that has clients. REDUCE: gloo's ring, in which every rank moves some two sums,
        however many ranks there are. At a tie the earliest of SEND_SUMS, REDUCE, SEND_UPDATES: in the first two all
        ranks add at the same time.
        """
        remote = [(term.rank, term.weight) for term in terms if term.rank != 0]
        sums = (8 * len(_distinct(remote)), 0, Op.SEND_SUMS)
        reduce = (8 * 2, 1, Op.REDUCE)
        updates = (self.dtype.itemsize * len(remote), 2, Op.SEND_UPDATES)
        allowed = {"auto": (sums, reduce, updates), "reduce": (sums, reduce), "send": (updates,)}
        return min(allowed[self._exchange])[2]

    def _receive(
        self,
        remote: Sequence[tuple[int, float | None]],
        own: Sequence[tuple[Tensor, float]],
        scale: SumScale,
        out: Tensor,
    ) -> None:
        """Add this rank's own updates and what the other ranks send, by (rank, weight) in this order.

        A weight of None stands for a rank's sum, which is of its clients' weighted updates already.
        """
        width = min(self.size, WINDOW)
        dtype = SUM_DTYPE if any(weight is None for _, weight in remote) else self.dtype
        idle = [torch.empty(width, dtype=dtype) for _ in range(IN_FLIGHT * len(_distinct(remote)))]
        expected = iter([(rank, stop - start) for start, stop in windows(self.size) for rank, _ in remote])
        receiving: deque[tuple[Transfer, Tensor, Tensor]] = deque()

        def fill_idle_buffers() -> None:
            """Begin to receive into every idle buffer."""
            while idle and (following := next(expected, None)):
                rank, length = following
                buffer = idle.pop()
                receiving.append((self._group.start_receive(buffer[:length], rank), buffer[:length], buffer))

        accumulator = Accumulator(width, self.dtype)
        for start, stop in windows(self.size):
            accumulator.reset(scale)
            for grad, weight in own:
                accumulator.add(grad[start:stop], weight)
            for _, remote_weight in remote:
                fill_idle_buffers()
                transfer, part, buffer = receiving.popleft()
                self._group.wait(transfer)
                if remote_weight is None:
                    accumulator.add_sum(part)
                else:
                    accumulator.add(part, remote_weight)
                idle.append(buffer)
            accumulator.result(out[start:stop])
        self._aggregation.meter.count("up", "aggregate", physical=out.numel() * dtype.itemsize * len(remote))


def _distinct(remote: Sequence[tuple[int, float | None]]) -> list[int]:
    """The ranks, each once, in order."""
    return list(dict.fromkeys(rank for rank, _ in remote))
