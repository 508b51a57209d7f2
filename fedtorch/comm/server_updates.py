"""The server's side of an aggregation: the two transports of one sum, and updates one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedtorch.comm.base import Updates
from fedtorch.comm.group import Op, Transfer
from fedtorch.comm.local_updates import IN_FLIGHT, LocalUpdates, Term
from fedtorch.comm.reproducible import SUM_DTYPE, WINDOW, Accumulator, SumScale, windows
from fedtorch.core.update import Report

Exchange = Literal["auto", "reduce", "send"]


class RemoteUpdates(Updates):
    """Updates that lie on many ranks, the server's own included.

    places: client -> (index in the manifest, rank that holds its update).
    """

    def __init__(
        self, reports: Sequence[Report], holder: LocalUpdates, places: Mapping[str, tuple[int, int]], exchange: Exchange
    ) -> None:
        super().__init__(reports, holder.local.size, holder.local.dtype)
        self._holder, self._group, self._places, self._exchange = holder, holder.group, places, exchange
        self._arriving: tuple[Transfer, Tensor] | None = None

    def finish(self, op: Op) -> None:
        """Tell the other ranks that the server is done, or has given up."""
        self._settle()
        self._holder.announce(op)

    def __iter__(self) -> Iterator[Tensor]:
        # Two buffers: while the caller works on one update the next one arrives in the other.
        buffers = (torch.empty(self.size, dtype=self.dtype), torch.empty(self.size, dtype=self.dtype))
        following = self._ask(0, buffers[0]) if self.reports else None
        for place in range(len(self.reports)):
            self._settle()
            update, following = following, None
            if place + 1 < len(self.reports):
                following = self._ask(place + 1, buffers[(place + 1) % 2])
            assert update is not None
            yield update

    def _ask(self, place: int, buffer: Tensor) -> Tensor:
        """Begin to receive the update of the report at `place` into `buffer`; the server's own needs no buffer."""
        self._settle()
        terms = [self._term(self.reports[place], 1.0)]
        self._holder.announce(Op.ONE, terms)
        for own, _ in self._holder.agree(Op.ONE, terms):
            return own
        self._arriving = self._group.start_receive(buffer, terms[0][1]), buffer
        self._holder.meter.count("up", "aggregate", physical=buffer.nbytes)
        return buffer

    def _settle(self) -> None:
        """Wait for an update that is still arriving: its sender takes part in nothing else until then."""
        if self._arriving is not None:
            (work, _), self._arriving = self._arriving, None
            self._group.wait(work)

    def _term(self, report: Report, weight: float) -> Term:
        return *self._places[report.client], weight

    def _sum(self, scale: SumScale, weighted: list[tuple[Report, float]]) -> Tensor:
        self._settle()
        terms = [self._term(report, weight) for report, weight in weighted]
        op = self._transport(terms)
        self._holder.announce(op, terms, scale.exponent)
        held = self._holder.agree(op, terms)
        out = torch.empty(self.size, dtype=self.dtype)
        remote = [(rank, weight) for _, rank, weight in terms if rank != 0]
        if op is Op.REDUCE:
            self._holder.reduce(held, scale, out)
        elif op is Op.SUMS:
            self._receive([(rank, None) for rank in _distinct(remote)], held, scale, out)
        else:
            self._receive(remote, held, scale, out)
        return out

    def _transport(self, terms: Sequence[Term]) -> Op:
        """The one in which the busiest rank moves the fewest bytes per element.

        SEND: the server receives every remote client's update. SUMS: the server receives one sum, of 8 bytes, from
        every other rank that has clients. REDUCE: gloo's ring, in which every rank moves some two sums, however many
        ranks there are. At a tie not SEND: in the others all ranks add at the same time.
        """
        remote = [(rank, weight) for _, rank, weight in terms if rank != 0]
        num_bytes = {
            Op.SUMS: 8 * len(_distinct(remote)),
            Op.REDUCE: 8 * 2,
            Op.SEND: self.dtype.itemsize * len(remote),
        }
        if self._exchange != "auto":
            num_bytes = {op: count for op, count in num_bytes.items() if (op is Op.SEND) == (self._exchange == "send")}
        return min(num_bytes, key=lambda op: num_bytes[op])

    def _receive(
        self,
        remote: Sequence[tuple[int, float | None]],
        held: Sequence[tuple[Tensor, float]],
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
        arriving: deque[tuple[Transfer, Tensor, Tensor]] = deque()

        def expect() -> None:
            """Begin to receive into every idle buffer."""
            while idle and (coming := next(expected, None)):
                rank, length = coming
                buffer = idle.pop()
                arriving.append((self._group.start_receive(buffer[:length], rank), buffer[:length], buffer))

        accumulator = Accumulator(width, self.dtype)
        for start, stop in windows(self.size):
            accumulator.reset(scale)
            for grad, weight in held:
                accumulator.add(grad[start:stop], weight)
            for _, remote_weight in remote:
                expect()
                work, part, buffer = arriving.popleft()
                self._group.wait(work)
                if remote_weight is None:
                    accumulator.add_sum(part)
                else:
                    accumulator.add(part, remote_weight)
                idle.append(buffer)
            accumulator.result(out[start:stop])
        self._holder.meter.count("up", "aggregate", physical=out.numel() * dtype.itemsize * len(remote))


def _distinct(remote: Sequence[tuple[int, float | None]]) -> list[int]:
    """The ranks, each once, in order."""
    return list(dict.fromkeys(rank for rank, _ in remote))
