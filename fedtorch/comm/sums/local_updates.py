"""Every rank's own updates in an aggregation: answering the server's requests; `aggregation` has the whole protocol.

Vectors go window by window (`reproducible.WINDOW`), all clients of a window before the next one, so that sums stay in
the cache and no rank needs a second vector of full length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from fedtorch.comm.sums import sum_slices
from fedtorch.comm.sums.aggregation import IN_FLIGHT, Aggregation, Term
from fedtorch.comm.sums.checks import SumCheck, as_integers, as_numbers, projection
from fedtorch.comm.sums.device_sum import DeviceAccumulator, accumulator_for
from fedtorch.comm.sums.masked import take_part
from fedtorch.comm.sums.reproducible import Accumulator, SumScale
from fedtorch.comm.sums.witnessed import SilosPart
from fedtorch.comm.transport.digests import WindowDigest, window_digest
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.process_group import Transfer
from fedtorch.comm.transport.window_memory import OutgoingWindows
from fedtorch.comm.transport.windows import SUM_DTYPE, WINDOW, windows
from fedtorch.core.errors import FedtorchError, PreflightError, RefusedUpdatesError, TrustError
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError


def answer_requests(aggregation: Aggregation) -> None:
    """On every rank but the server: take part in what the server requests, until it is done.

    Raises:
        PolicyError: this side's gate lets nothing of it out.
        RefusedUpdatesError: the server has refused updates and is going to decide again.
        FedtorchError: the server gave up.
    """
    while True:
        op, terms, scale = aggregation.receive_request()
        if op is Op.DONE:
            return
        if op is Op.REFUSED:
            raise RefusedUpdatesError({})
        if op is Op.ABORT:
            raise FedtorchError(f"combining the updates of round {aggregation.round} failed on the server; see its log")
        if aggregation.masking is not None and op is not Op.MASKED:
            raise BrokenProtocolError(
                f"the server asks for updates as they are ({op.name}) in round {aggregation.round + 1} of a run with "
                "privacy.secure_sum; nothing is sent to it"
            )
        _refuse_unsigned(aggregation, op)
        own, size = aggregation.agree(op, terms), aggregation.length(terms)
        if op is Op.SUM_SLICES:
            sum_slices.take_part(aggregation, terms, scale)
        elif op is Op.REDUCE:
            reduce_sum(aggregation, own, scale, size)
        elif op is Op.MASKED:
            take_part(aggregation, terms, own, scale, size)
        elif op is Op.SEND_SUMS and not aggregation.leaves_as_update(len(own)):
            send_sum(aggregation, terms, own, scale, size)
        else:
            signed = aggregation.silos_part("updates", terms, scale) if own else None
            send_updates([grad for grad, _ in own], aggregation, size, in_windows=op is not Op.SEND_ONE, signed=signed)


def _refuse_unsigned(aggregation: Aggregation, op: Op) -> None:
    """Raises TrustError: parties sign what they send, and not in this way."""
    if aggregation.witness is None or op in (Op.SEND_SUMS, Op.MASKED):
        return
    if aggregation.is_checked or op not in (Op.SEND_UPDATES, Op.SEND_ONE):
        what = "one sum" if aggregation.is_checked else "what it signs to the server alone"
        key = "trust.verify" if aggregation.is_checked else "trust.members"
        raise TrustError(
            f"the server asks for updates in another way ({op.name}) in round {aggregation.round + 1} of a run with "
            f"{key}, in which each party sends {what}; nothing is sent to it"
        )


def reduce_sum(
    aggregation: Aggregation,
    own: Sequence[tuple[Tensor, float]],
    scale: SumScale,
    size: int,
    into: tuple[Tensor, SumCheck] | None = None,
) -> None:
    """Add up this rank's updates and, by one group reduce per window, all ranks'.

    size: of each. into: on the server, where the sum is written, and what it is compared with.
    Three windows are on the way, so that reducing overlaps adding. Where updates lie on a device the sum is made there,
    and reduced from there; by a rank that has none of them too.
    """
    group, local = aggregation.group, aggregation.local
    lender = OutgoingWindows(group, local.sums) if into is None else local.sums
    accumulators = [accumulator_for(local.device, min(size, WINDOW), local.dtype, lender) for _ in range(3)]
    idle = [*accumulators]
    reducing: deque[tuple[Transfer, Accumulator | DeviceAccumulator, int, int]] = deque()
    sent, came = list[float](), list[float]()

    def finish() -> None:
        transfer, accumulator, start, stop = reducing.popleft()
        group.wait(transfer)
        if into is not None:
            came.append(projection(accumulator.partial(stop - start)))
            accumulator.result(into[0][start:stop])
        idle.append(accumulator)

    for start, stop in windows(size):
        if not idle:
            finish()
        accumulator = idle.pop()
        accumulator.reset(scale)
        for grad, weight in own:
            accumulator.add(grad[start:stop], weight)
        partial = _checked(accumulator.partial(stop - start), stop - start)
        sent.append(projection(partial))
        reducing.append((group.start_reduce(partial), accumulator, start, stop))
    while reducing:
        finish()
    if into is None:
        group.send_numbers(as_integers(sent))
    else:
        into[1].see_sum(sum(accumulator.squares for accumulator in accumulators), into[0])
        _compare_projections(aggregation, sent, came, into[1], size)
    aggregation.meter.count("up", "aggregate", physical=8 * size * (group.size - 1 if into is not None else 1))


def _compare_projections(
    aggregation: Aggregation, own: Sequence[float], came: Sequence[float], check: SumCheck, size: int
) -> None:
    """On the server: what all ranks say their windows are, and what came of them together."""
    group = aggregation.group
    others = [as_numbers(group.receive_numbers(len(came), rank)) for rank in group.members[1:]]
    check.see_projections(list(map(sum, zip(own, *others, strict=True))), came, min(size, WINDOW))


def send_sum(
    aggregation: Aggregation,
    terms: Sequence[Term],
    own: Sequence[tuple[Tensor, float]],
    scale: SumScale,
    size: int,
) -> None:
    """Add up this rank's updates and send the server the sum, if there is any, while the next window is added."""
    group, local, sends = aggregation.group, aggregation.local, bool(own) or aggregation.all_send
    witnessed = aggregation.silos_part("sum", terms, scale) if sends else None
    lender = OutgoingWindows(group, local.sums)
    idle = [Accumulator(min(size, WINDOW), local.dtype, lender) for _ in range(IN_FLIGHT if sends else 0)]
    sending: deque[tuple[Transfer, Accumulator]] = deque()
    digests: list[int] = []

    def finish() -> None:
        transfer, accumulator = sending.popleft()
        group.wait(transfer)
        idle.append(accumulator)

    for start, stop in windows(size) if sends else ():
        if not idle:
            finish()
        accumulator = idle.pop()
        accumulator.reset(scale)
        outgoing = WindowDigest(stop - start, SUM_DTYPE)
        for grad, weight in own:
            accumulator.add(grad[start:stop], weight)
        window = _checked(accumulator.partial(stop - start, outgoing), stop - start)
        sending.append((group.start_send(window), accumulator))
        if witnessed is not None:
            witnessed.see_sum(window.numpy())
        digests.append(outgoing.digest)
        aggregation.meter.count("up", "aggregate", physical=8 * (stop - start))
    while sending:
        finish()
    group.send_numbers(digests)
    if witnessed is not None:
        witnessed.send()


def send_updates(
    grads: Sequence[Tensor],
    aggregation: Aggregation,
    size: int,
    *,
    in_windows: bool,
    signed: SilosPart | None = None,
) -> None:
    """Send the server this rank's updates as they are; in_windows: of all of them a window before the next one."""
    group = aggregation.group
    sending: deque[Transfer] = deque()
    digests: list[int] = []
    for start, stop in windows(size) if in_windows else [(0, size)]:
        for place, grad in enumerate(grads):
            window = _checked(grad[start:stop], stop - start)
            if signed is not None:
                signed.see_update(window.numpy(), place)
            sending.append(group.start_send(window))
            digests.append(window_digest(window))
            if len(sending) > 2 * IN_FLIGHT:
                group.wait(sending.popleft())
    for transfer in sending:
        group.wait(transfer)
    group.send_numbers(digests)
    if signed is not None:
        signed.send()
    aggregation.meter.count("up", "aggregate", physical=sum(grad.nbytes for grad in grads))


def _checked(window: Tensor, length: int) -> Tensor:
    """`window`, which the receiver expects to have `length` numbers.

    Raises:
        PreflightError: it has not. gloo aborts the process that receives too much (*measured*, torch 2.13).
    """
    if window.shape != (length,):
        raise PreflightError(f"this rank was about to send {window.numel()} numbers in place of the agreed {length}")
    return window
