"""The server's side of an aggregation: the three transports of one sum, and updates one at a time.

`aggregation` has the whole protocol.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex

import torch
from torch import Tensor

from fedtorch.comm.sums import sum_slices
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.aggregation import Aggregation, Request, Term
from fedtorch.comm.sums.arriving import Incoming, arriving, by_rank, distinct
from fedtorch.comm.sums.checks import TOLERANCE, SumCheck
from fedtorch.comm.sums.early import Early
from fedtorch.comm.sums.local_updates import reduce_sum
from fedtorch.comm.sums.masked import Damaged, collect
from fedtorch.comm.sums.reproducible import Accumulator, SumScale
from fedtorch.comm.sums.sum_ways import Exchange, choose
from fedtorch.comm.sums.witnessed import ServersPart
from fedtorch.comm.transport.digests import DAMAGED, WindowDigest, window_digest
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.process_group import Transfer
from fedtorch.comm.transport.update_memory import NOWHERE
from fedtorch.comm.transport.window_memory import give_back
from fedtorch.comm.transport.windows import SUM_DTYPE, WINDOW, windows
from fedtorch.core.errors import RefusedUpdatesError
from fedtorch.core.update import Report
from fedtorch.privacy.public_sum import Masking
from fedtorch.privacy.secure_sum.terms import LEAST_PARTIES, TooFewPartiesError

log = logging.getLogger(__name__)


class DistributedUpdates(AcceptedUpdates):
    """Updates that are on many ranks, the server's own included."""

    def __init__(
        self,
        aggregation: Aggregation,
        reports: Sequence[Report],
        places: Mapping[str, tuple[int, int]],
        exchange: Exchange,
        early: Early | None = None,
    ) -> None:
        """places: client -> (index in the manifest, rank that has its update). early: of this round."""
        super().__init__(reports, aggregation.local, aggregation.round)
        self._aggregation, self._group = aggregation, aggregation.group
        self._places, self._exchange, self._early = places, exchange, early
        self.sums_only, self.all_send = aggregation.is_checked, aggregation.all_send
        self._receiving: tuple[Transfer, Tensor, int, ServersPart | None] | None = None

    def finish(self, op: Op) -> None:
        """Tell the other ranks that the server is done, or has given up."""
        self._finish_receiving()
        self._aggregation.broadcast_request(Request(op))

    def _each(self) -> Iterator[tuple[Tensor, str]]:
        # Two buffers: while the caller works on one update the next one is received in the other.
        longest = max((self.lengths[report.client] for report in self.reports), default=0)
        buffers = (torch.empty(longest, dtype=self.dtype), torch.empty(longest, dtype=self.dtype))
        following = self._start_receiving(0, buffers[0]) if self.reports else None
        for place in range(len(self.reports)):
            problem = self._finish_receiving()
            update, following = following, None
            if place + 1 < len(self.reports):
                following = self._start_receiving(place + 1, buffers[(place + 1) % 2])
            assert update is not None
            yield update, problem

    def _start_receiving(self, place: int, buffer: Tensor) -> Tensor:
        """Begin to receive the update of the report at `place` into `buffer`; the server's own needs no buffer."""
        self._finish_receiving()
        terms = [self._term(self.reports[place], 1.0)]
        self._aggregation.broadcast_request(Request(Op.SEND_ONE, terms))
        for own, _ in self._aggregation.agree(Op.SEND_ONE, terms):
            return own
        buffer = buffer[: self.lengths[self.reports[place].client]]
        signed = self._aggregation.servers_part(SumScale(0))
        self._receiving = self._group.start_receive(buffer, terms[0].rank), buffer, terms[0].rank, signed
        self._aggregation.meter.count("up", "aggregate", physical=buffer.nbytes)
        return buffer

    def _finish_receiving(self) -> str:
        """Wait for an update that is on its way: its sender takes part in nothing else until then.

        Returns what went wrong with it on its way.
        """
        if self._receiving is None:
            return ""
        (transfer, buffer, rank, signed), self._receiving = self._receiving, None
        self._group.wait(transfer)
        is_whole = self._group.receive_numbers(1, rank) == [window_digest(buffer)]
        if signed is not None:
            signed.see_part(rank, buffer.numpy())
            signed.finish([rank])
        return "" if is_whole else f"its update {DAMAGED}"

    def _windows(self, damaged: dict[str, str]) -> Iterator[Tensor]:
        """As the server gets updates one by one for a sum; they are kept side by side in place of being added."""
        self._finish_receiving()
        terms = [self._term(report, 1.0) for report in self.reports]
        if not terms:
            return
        self._aggregation.broadcast_request(Request(Op.SEND_UPDATES, terms))
        own = iter(self._aggregation.agree(Op.SEND_UPDATES, terms))
        here = {place: next(own)[0] for place, term in enumerate(terms) if term.rank == 0}
        remote = [
            Incoming(term.rank, (report.client,), 1.0)
            for term, report in zip(terms, self.reports, strict=True)
            if term.rank != 0
        ]
        size = self._aggregation.length(terms)
        signed = self._aggregation.servers_part(SumScale(0))
        arriving = self._watched(remote, size, signed)
        window = torch.empty(len(terms), min(size, WINDOW), dtype=self.dtype)
        digests: list[int] = []
        for start, stop in windows(size):
            rows = window[:, : stop - start]
            for place, row in enumerate(rows):
                if place in here:
                    row.copy_(here[place][start:stop])
                else:
                    part = next(arriving)
                    digests.append(window_digest(part))
                    row.copy_(part)
            yield rows
        give_back(self._group)
        for place in self._damaged(remote, digests):
            damaged[remote[place].clients[0]] = f"its update {DAMAGED}"
        if signed is not None:
            signed.finish(distinct(remote))
        self._aggregation.meter.count("up", "aggregate", physical=size * self.dtype.itemsize * len(remote))

    def _term(self, report: Report, weight: float) -> Term:
        return Term(*self._places[report.client], weight)

    def _sum(
        self, scale: SumScale, weighted: list[tuple[Report, float]], check: SumCheck, *, singly: bool = False
    ) -> Tensor:
        self._finish_receiving()
        early = None if singly or self._early is None else self._early.sum_of(scale, weighted, check, self.sum_dtype)
        if early is not None:
            return early
        terms = [self._term(report, weight) for report, weight in weighted]
        op = Op.SEND_UPDATES if singly else self._transport(terms)
        out = self._aggregation.local.sums.lend(self._aggregation.length(terms), self.sum_dtype)
        if not singly and self._sum_in_slices(terms, scale, (out, check), op):
            return out
        self._aggregation.broadcast_request(Request(op, terms, scale))
        own = self._aggregation.agree(op, terms)
        if op is Op.REDUCE:
            reduce_sum(self._aggregation, own, scale, len(out), (out, check))
            return out
        remote = [
            Incoming(term.rank, (report.client,), term.weight)
            for term, (report, _) in zip(terms, weighted, strict=True)
            if term.rank != 0
        ]
        summed = by_rank(self._aggregation, remote) if op is Op.SEND_SUMS else remote
        self._receive(summed, own, scale, (out, check))
        return out

    def _sum_in_slices(
        self, terms: Sequence[Term], scale: SumScale, into: tuple[Tensor, SumCheck], otherwise: Op
    ) -> bool:
        """Have all ranks added up a slice each, from updates that they read where they are?

        Not of parts of vectors, nor where a rank may not know of others' clients, nor if a rank cannot read an update.
        """
        is_whole = into[0].dtype == self.dtype == torch.float32 and len(into[0]) == self._aggregation.local.size
        can_be_reached = self._aggregation.reads_in_place and self._aggregation.memory.place(into[0]) != NOWHERE
        if not (is_whole and can_be_reached and terms and self._exchange == "auto"):
            return False
        self._aggregation.broadcast_request(Request(Op.SUM_SLICES, terms, scale))
        self._aggregation.agree(Op.SUM_SLICES, terms)
        return sum_slices.collect(self._aggregation, terms, scale, into, otherwise)

    def masked_sum(self, exponent: int, limit: float, masking: Masking, before_opening: Callable[[], None]) -> Tensor:
        """Make a secure sum; a part that was damaged on its way is sent once more, under other masks."""
        self._finish_receiving()
        terms = [self._term(report, 1.0) for report in self.reports]
        parties = masking.parties((term.rank for term in terms), self._group.members[1:])
        needed = masking.needed(self.round, parties)
        if len(parties) < max(needed, LEAST_PARTIES):
            raise TooFewPartiesError(
                f"{len(parties)} workers have a part of it; {max(needed, LEAST_PARTIES)} are needed"
            )
        agreed = {"run": token_hex(16), "round": self.round, "parties": tuple(parties), "threshold": needed}
        size = self._aggregation.length(terms)
        for _ in range(2):
            self._aggregation.broadcast_request(Request(Op.MASKED, terms, SumScale(exponent)))
            self._aggregation.agree(Op.MASKED, terms)
            try:
                found = collect(self._aggregation, agreed, SumScale(exponent), size, before_opening)
                whole = torch.from_numpy(found).to(SUM_DTYPE)
                break
            except Damaged as error:
                log.warning("%s", error)
                damaged = error.ranks
        else:
            raise RefusedUpdatesError({r.client: DAMAGED for r in self.reports if self._places[r.client][1] in damaged})
        if not float(whole.norm()) <= math.ldexp(limit, exponent) * len(self.reports) * (1 + TOLERANCE):
            raise RefusedUpdatesError({r.client: "the sum is longer than all clips" for r in self.reports})
        places = self.places[self.reports[0].client] if self.reports else None
        return whole if places is None else places.spread(whole)

    def _transport(self, terms: Sequence[Term]) -> Op:
        """Choose the way of the sum, by `sum_ways`; where silos check it, each sends one of its own.

        From device to device it is reduced, as nothing of it crosses to the host then.
        """
        if self.sums_only:
            return Op.SEND_SUMS
        sends = self._aggregation.sends_to_server
        if self._aggregation.local.device.type != "cpu" and not sends:
            return Op.REDUCE
        held = Counter(term.rank for term in terms)
        return choose(
            [held[rank] for rank in self._group.members],
            self.dtype.itemsize,
            self._exchange,
            machines=self._group.machines,
            is_secret=sends,
        )

    def _receive(
        self,
        remote: Sequence[Incoming],
        own: Sequence[tuple[Tensor, float]],
        scale: SumScale,
        into: tuple[Tensor, SumCheck],
    ) -> None:
        """Add this rank's own updates and what the other ranks send, in this order. into: see `reduce_sum`."""
        out, check = into
        signed = self._aggregation.servers_part(scale, len(out))
        witnessed = signed if self._aggregation.is_checked else None
        arriving = self._watched(remote, len(out), signed)
        accumulator = Accumulator(min(len(out), WINDOW), self.dtype, self._aggregation.local.sums)
        squares = [0.0] * len(remote)
        digests: list[int] = []
        for start, stop in windows(len(out)):
            accumulator.reset(scale)
            for grad, weight in own:
                accumulator.add(grad[start:stop], weight)
            for place, each in enumerate(remote):
                part = next(arriving)
                incoming = WindowDigest(len(part), part.dtype)
                if each.weight is not None:
                    accumulator.add(part, each.weight, incoming=incoming)
                elif place + 1 < len(remote) or witnessed is not None:
                    accumulator.add_sum(part, incoming)
                else:
                    accumulator.result(out[start:stop], part, incoming)
                digests.append(incoming.digest)
                squares[place] += incoming.squares
            if witnessed is not None:
                witnessed.see_sum(start, accumulator.partial(stop - start).numpy())
            if not remote or remote[-1].weight is not None or witnessed is not None:
                accumulator.result(out[start:stop])
        give_back(self._group)
        self._compare(remote, digests, squares, check, signed)
        check.see_sum(accumulator.squares, out)
        each_bytes = sum(each.dtype(self.dtype).itemsize for each in remote)
        self._aggregation.meter.count("up", "aggregate", physical=out.numel() * each_bytes)

    def _watched(self, remote: Sequence[Incoming], size: int, signed: ServersPart | None) -> Iterator[Tensor]:
        """Yield the others' vectors window by window, in this order; each as it came into what is signed."""
        expected = [(each, stop - start) for start, stop in windows(size) for each in remote]
        came = arriving(self._aggregation, expected)
        return came if signed is None else signed.watching(came, [each.rank for each in remote])

    def _compare(
        self,
        remote: Sequence[Incoming],
        digests: Sequence[int],
        squares: Sequence[float],
        check: SumCheck,
        signed: ServersPart | None,
    ) -> None:
        """Compare what came with what was sent, reported and signed. digests: of the windows, as they came."""
        damaged = self._damaged(remote, digests)
        for place, each in enumerate(remote):
            each.show(check, squares[place], is_whole=place not in damaged)
        if signed is not None:
            signed.finish(distinct(remote))

    def _damaged(self, remote: Sequence[Incoming], digests: Sequence[int]) -> set[int]:
        """The places in `remote` of which a window is not what was sent."""
        senders = [each.rank for each in remote] * (len(digests) // max(1, len(remote)))
        sent = {
            rank: iter(self._group.receive_numbers(senders.count(rank), rank)) for rank in distinct(remote) if digests
        }
        return {
            place % len(remote)
            for place, (rank, digest) in enumerate(zip(senders, digests, strict=True))
            if next(sent[rank]) != digest
        }
