"""Every rank's own updates in an aggregation: answering the server's requests; `aggregation` has the whole protocol.

Vectors go window by window (`reproducible.WINDOW`), all clients of a window before the next one, so that sums stay in
the cache and no rank needs a second vector of full length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from fedtorch.comm.aggregation import IN_FLIGHT, Aggregation
from fedtorch.comm.group import Transfer
from fedtorch.comm.header import Op
from fedtorch.comm.reproducible import WINDOW, Accumulator, SumScale, windows
from fedtorch.core.errors import FedtorchError


def answer_requests(aggregation: Aggregation) -> None:
    """On every rank but the server: take part in what the server requests, until it is done.

    Raises:
        FedtorchError: the server gave up.
    """
    while True:
        op, terms, scale = aggregation.receive_request()
        if op is Op.DONE:
            return
        if op is Op.ABORT:
            raise FedtorchError(f"combining the updates of round {aggregation.round} failed on the server; see its log")
        own = aggregation.agree(op, terms)
        if op is Op.REDUCE:
            reduce_sum(aggregation, own, scale)
        elif op is Op.SEND_SUMS:
            _send_sum(aggregation, own, scale)
        else:
            _send([grad for grad, _ in own], aggregation, in_windows=op is Op.SEND_UPDATES)


def reduce_sum(
    aggregation: Aggregation, own: Sequence[tuple[Tensor, float]], scale: SumScale, out: Tensor | None = None
) -> None:
    """Add up this rank's updates and, by one group reduce per window, all ranks'; into `out` on the server.

    Three windows are on the way, so that reducing overlaps adding.
    """
    group, local = aggregation.group, aggregation.local
    idle = [Accumulator(min(local.size, WINDOW), local.dtype) for _ in range(3)]
    reducing: deque[tuple[Transfer, Accumulator, int, int]] = deque()

    def finish() -> None:
        transfer, accumulator, start, stop = reducing.popleft()
        group.wait(transfer)
        if out is not None:
            accumulator.result(out[start:stop])
        idle.append(accumulator)

    for start, stop in windows(local.size):
        if not idle:
            finish()
        accumulator = idle.pop()
        accumulator.reset(scale)
        for grad, weight in own:
            accumulator.add(grad[start:stop], weight)
        reducing.append((group.start_reduce(accumulator.partial(stop - start)), accumulator, start, stop))
    while reducing:
        finish()
    senders = group.size - 1 if out is not None else 1
    aggregation.meter.count("up", "aggregate", physical=8 * local.size * senders)


def _send_sum(aggregation: Aggregation, own: Sequence[tuple[Tensor, float]], scale: SumScale) -> None:
    """Add up this rank's updates and send the server the sum, if there is any, while the next window is added."""
    group, local = aggregation.group, aggregation.local
    idle = [Accumulator(min(local.size, WINDOW), local.dtype) for _ in range(IN_FLIGHT if own else 0)]
    sending: deque[tuple[Transfer, Accumulator]] = deque()

    def finish() -> None:
        transfer, accumulator = sending.popleft()
        group.wait(transfer)
        idle.append(accumulator)

    for start, stop in windows(local.size) if own else ():
        if not idle:
            finish()
        accumulator = idle.pop()
        accumulator.reset(scale)
        for grad, weight in own:
            accumulator.add(grad[start:stop], weight)
        sending.append((group.start_send(accumulator.partial(stop - start)), accumulator))
        aggregation.meter.count("up", "aggregate", physical=8 * (stop - start))
    while sending:
        finish()


def _send(grads: Sequence[Tensor], aggregation: Aggregation, *, in_windows: bool) -> None:
    group, size = aggregation.group, aggregation.local.size
    sending: deque[Transfer] = deque()
    for start, stop in windows(size) if in_windows else [(0, size)]:
        for grad in grads:
            sending.append(group.start_send(grad[start:stop]))
            if len(sending) > 2 * IN_FLIGHT:
                group.wait(sending.popleft())
    for transfer in sending:
        group.wait(transfer)
    aggregation.meter.count("up", "aggregate", physical=sum(grad.nbytes for grad in grads))
