"""Every rank's side of an aggregation: what it holds of the updates that the server announces, and how it gives them.

An operation is announced by the server and agreed on by all ranks before an update moves. Vectors go window by window
(`reproducible.WINDOW`), all clients of a window before the next one, so that sums stay in the cache and no rank needs
a second vector of full length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from fedtorch.comm.faults import Faults
from fedtorch.comm.group import Group, Op, Problem, Transfer, problem_of
from fedtorch.comm.meter import Meter
from fedtorch.comm.reproducible import WINDOW, Accumulator, SumScale, windows
from fedtorch.core.errors import FedtorchError, PreflightError
from fedtorch.core.update import UpdateBuffer

IN_FLIGHT = 4  # windows on the way per sending rank
Term = tuple[int, int, float]  # client index, rank that holds its update, weight


class LocalUpdates:
    """The updates that this rank holds (`local`), for the time of one `aggregate`."""

    def __init__(
        self,
        group: Group,
        local: UpdateBuffer,
        names: Sequence[str],
        meter: Meter,
        *,
        round: int,
        faults: Faults,
    ) -> None:
        self.group, self.local, self.names, self.meter, self.round = group, local, names, meter, round
        self._faults = faults

    def announce(self, op: Op, terms: Sequence[Term] = (), exponent: int = 0) -> None:
        """On the server: say what comes next."""
        self.group.tell(torch.tensor([op, self.round, len(terms), exponent], dtype=torch.int64))
        if terms:
            clients, ranks, weights = zip(*terms, strict=True)
            bits = torch.tensor(weights, dtype=torch.float64).view(torch.int64)
            self.group.tell(torch.stack([torch.tensor(clients), torch.tensor(ranks), bits]))

    def hear(self) -> tuple[Op, list[Term], SumScale]:
        """Elsewhere: what the server announced."""
        head = torch.zeros(4, dtype=torch.int64)
        self.group.tell(head)
        op, round, count, exponent = head.tolist()
        if op not in list(Op) or round != self.round or count < 0:
            self.group.drop()
            raise PreflightError(f"the server announced {head.tolist()}; expected an operation of round {self.round}")
        table = torch.zeros(3, count, dtype=torch.int64)
        if count:
            self.group.tell(table)
        weights = table[2].view(torch.float64).tolist()
        return Op(op), list(zip(table[0].tolist(), table[1].tolist(), weights, strict=True)), SumScale(exponent)

    def agree(self, op: Op, terms: Sequence[Term]) -> list[tuple[Tensor, float]]:
        """This rank's updates among `terms` with their weights, once all ranks have found theirs."""
        held: list[tuple[Tensor, float]] = []
        problem = 0
        for client, rank, weight in terms:
            if rank == self.group.rank and not problem:
                found = self._find(client)
                if isinstance(found, Tensor):
                    held.append((found, weight))
                else:
                    problem = problem_of(found, client)
        self.group.agree(op, round=self.round, length=self.local.size, dtype=self.local.dtype, problem=problem)
        self._faults("payload", round=self.round)
        return held

    def _find(self, client: int) -> Tensor | Problem:
        if not 0 <= client < len(self.names) or self.names[client] not in self.local:
            return Problem.MISSING
        try:
            grad = self.local.get(self.names[client])
        except (OSError, RuntimeError):
            return Problem.UNREADABLE
        fits = grad.shape == (self.local.size,) and grad.dtype == self.local.dtype and grad.device.type == "cpu"
        return grad.contiguous() if fits else Problem.MISFIT

    def serve(self) -> None:
        """On every rank but the server: give what is announced until the server is done.

        Raises:
            FedtorchError: the server gave up.
        """
        while True:
            op, terms, scale = self.hear()
            if op is Op.DONE:
                return
            if op is Op.ABORT:
                raise FedtorchError(f"combining the updates of round {self.round} failed on the server; see its log")
            held = self.agree(op, terms)
            if op is Op.REDUCE:
                self.reduce(held, scale)
            elif op is Op.SUMS:
                self._send_sum(held, scale)
            else:
                self._send([grad for grad, _ in held], in_windows=op is Op.SEND)

    def reduce(self, held: Sequence[tuple[Tensor, float]], scale: SumScale, out: Tensor | None = None) -> None:
        """Add up this rank's updates and, by one group reduce per window, all ranks'; into `out` on the server.

        Three windows are on the way, so that reducing overlaps adding.
        """
        idle = [Accumulator(min(self.local.size, WINDOW), self.local.dtype) for _ in range(3)]
        reducing: deque[tuple[Transfer, Accumulator, int, int]] = deque()

        def finish() -> None:
            work, accumulator, start, stop = reducing.popleft()
            self.group.wait(work)
            if out is not None:
                accumulator.result(out[start:stop])
            idle.append(accumulator)

        for start, stop in windows(self.local.size):
            if not idle:
                finish()
            accumulator = idle.pop()
            accumulator.reset(scale)
            for grad, weight in held:
                accumulator.add(grad[start:stop], weight)
            reducing.append((self.group.start_reduce(accumulator.settle(stop - start)), accumulator, start, stop))
        while reducing:
            finish()
        senders = self.group.size - 1 if out is not None else 1
        self.meter.count("up", "aggregate", physical=8 * self.local.size * senders)

    def _send_sum(self, held: Sequence[tuple[Tensor, float]], scale: SumScale) -> None:
        """Add up this rank's updates and send the server the sum, if there is any, while the next window is added."""
        idle = [Accumulator(min(self.local.size, WINDOW), self.local.dtype) for _ in range(IN_FLIGHT if held else 0)]
        sending: deque[tuple[Transfer, Accumulator]] = deque()

        def finish() -> None:
            work, accumulator = sending.popleft()
            self.group.wait(work)
            idle.append(accumulator)

        for start, stop in windows(self.local.size) if held else ():
            if not idle:
                finish()
            accumulator = idle.pop()
            accumulator.reset(scale)
            for grad, weight in held:
                accumulator.add(grad[start:stop], weight)
            sending.append((self.group.start_send(accumulator.settle(stop - start)), accumulator))
            self.meter.count("up", "aggregate", physical=8 * (stop - start))
        while sending:
            finish()

    def _send(self, grads: Sequence[Tensor], *, in_windows: bool) -> None:
        pieces = windows(self.local.size) if in_windows else iter([(0, self.local.size)])
        sending: deque[Transfer] = deque()
        for start, stop in pieces:
            for grad in grads:
                sending.append(self.group.start_send(grad[start:stop]))
                if len(sending) > 2 * IN_FLIGHT:
                    self.group.wait(sending.popleft())
        for work in sending:
            self.group.wait(work)
        self.meter.count("up", "aggregate", physical=sum(grad.nbytes for grad in grads))
