"""The two sides of updates that travel while others train, and their beginning; `early` has the protocol."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from queue import Empty

import torch
from torch import Tensor

from fedtorch.comm.job.notes import read_part
from fedtorch.comm.job.store import Store
from fedtorch.comm.sums.aggregation import Aggregation
from fedtorch.comm.sums.arriving import Incoming, arriving
from fedtorch.comm.sums.checks import SumCheck
from fedtorch.comm.sums.early import Early, Queued
from fedtorch.comm.sums.local_updates import send_sum, send_updates
from fedtorch.comm.sums.reproducible import RunningSum, SumScale
from fedtorch.comm.sums.sending_pace import SendingPace
from fedtorch.comm.transport.digests import WindowDigest
from fedtorch.comm.transport.window_memory import give_back
from fedtorch.comm.transport.windows import SUM_DTYPE, windows
from fedtorch.core.names import Names
from fedtorch.core.update import Report

log = logging.getLogger(__name__)

MOST_SENDERS = 4
"""Ranks beside the server whose last updates, of 4 bytes per number each, it receives in no more bytes than the two
sums of 8 that a ring would bring; of more ranks only with `system.exchange: send`."""
_POLL_S = 0.02  # between two questions to the store, 0.2 ms each


class EarlySender(Early):
    """On every rank but the server."""

    def put(self, client: str, weight: float) -> None:
        """Count the client as done, and queue its update."""
        self._pace.see_done(time.monotonic())
        super().put(client, weight)

    def _run(self) -> None:
        is_over, part = False, list[Queued]()
        for number in count():
            while not is_over and not (part and self._queue.empty() and self._pays(len(part))):
                queued = self._queue.get()
                is_over = queued is None
                part += [] if queued is None else [queued]
            if part and not self._is_void:
                self._send(number, part)
            if is_over:
                if self._is_void:
                    self._store.set(_void(self._key, self._main.group.rank), "")
                return
            part = []

    def _bytes(self, count: int) -> int:
        return self._size * (self._main.local.dtype.itemsize if count == 1 else SUM_DTYPE.itemsize)

    def _pays(self, count: int) -> bool:
        return self._pace.pays(self._bytes(count), time.monotonic())

    def _send(self, number: int, part: list[Queued]) -> None:
        aggregation = self._aside
        try:
            own = [(aggregation.local.get(aggregation.names[client]), weight) for client, weight in part]
        except KeyError:  # void by now
            return
        note = {"clients": [client for client, _ in part], "weights": [weight.hex() for _, weight in part]}
        self._store.set(f"{self._key}/{aggregation.group.rank}/{number}", json.dumps(note))
        self._store.add(self._key, 1)
        began_s = time.monotonic()
        if len(own) == 1:
            send_updates([own[0][0]], aggregation, self._size, in_windows=True)
        else:
            send_sum(aggregation, (), own, self._scale, self._size)
        self._pace.see_sent(self._bytes(len(own)), time.monotonic() - began_s)


class EarlyReceiver(Early):
    """On the server."""

    def __init__(
        self,
        aggregation: Aggregation,
        store: Store,
        exponent: int | None,
        pace: SendingPace,
        size: int,
        expected: Mapping[int, Collection[str]],
    ) -> None:
        """expected: rank -> clients whose updates may come from it, of lost ranks too, from which nothing comes."""
        places = Names.of(aggregation.names)
        self._expected = {rank: {*map(places.place, expected.get(rank, ()))} for rank in aggregation.group.members}
        self._sum: RunningSum
        self._weights: dict[str, float] = {}
        self._parts: list[tuple[Incoming, float, bool]] = []  # with squares, and whether it is what was sent
        self._next = dict.fromkeys(aggregation.group.members[1:], 0)
        self._announced = 0
        super().__init__(aggregation, store, exponent, pace, size)

    def sum_of(
        self, scale: SumScale, weighted: Sequence[tuple[Report, float]], check: SumCheck, dtype: torch.dtype
    ) -> Tensor | None:
        """Return the sum of what came early; None: that is not what counts now, so it is sent again."""
        weights = {report.client: weight for report, weight in weighted}
        is_done = not (self._thread.is_alive() or self._problem or self._is_void)
        if not is_done or (scale.exponent, weights) != (self._exponent, self._weights):
            log.debug("round %d: what was sent early is not what counts; it is sent again", self._main.round + 1)
            return None
        for part, squares, is_whole in self._parts:
            part.show(check, squares, is_whole=is_whole)
        local = self._main.local
        out = local.sums.lend(self._size, dtype)
        check.see_sum(self._sum.write(out, scale), out)
        return out

    def _run(self) -> None:
        self._sum = RunningSum(self._size, self._scale, self._main.local.sums)
        while not self._main.group.is_broken:
            try:
                queued: tuple[Queued | None, ...] = (self._queue.get(timeout=_POLL_S),)
            except Empty:
                queued = ()
            for client, weight in filter(None, queued):
                self._add_own(client, weight)
            if (is_last := None in queued) or self._store.add(self._key, 0) > self._announced:
                while any([self._receive_next(rank) for rank in self._next]):
                    pass
            if is_last:
                voids = [key for rank in self._next if self._store.has([key := _void(self._key, rank)])]
                self._is_void |= bool(voids)
                self._store.delete([self._key, *voids])
                return

    def _add_own(self, client: int, weight: float) -> None:
        name = self._main.names[client]
        try:
            grad = self._main.local.get(name)
        except KeyError:  # void by now
            return
        for start, stop in windows(len(grad)):
            self._sum.add(start, grad[start:stop], weight)
        self._weights[name] = weight

    def _receive_next(self, rank: int) -> bool:
        """The next part that the rank has announced; False if there is none."""
        key = f"{self._key}/{rank}/{self._next[rank]}"
        if not self._store.has([key]):
            return False
        found = read_part(self._store.get(key, by=rank), rank, self._expected[rank])
        self._store.delete([key])
        for places in self._expected.values():
            places -= found.keys()
        self._next[rank] += 1
        self._announced += 1
        weights = {self._main.names[client]: weight for client, weight in found.items()}
        self._receive(Incoming(rank, tuple(weights), next(iter(weights.values())) if len(weights) == 1 else None))
        self._weights.update(weights)
        return True

    def _receive(self, part: Incoming) -> None:
        group, local = self._aside.group, self._main.local
        dtype = part.dtype(local.dtype)
        spans, squares, digests = [*windows(self._size)], 0.0, []
        came = arriving(self._aside, [(part, stop - start) for start, stop in spans])
        for (start, _), window in zip(spans, came, strict=True):
            incoming = WindowDigest(len(window), window.dtype)
            self._sum.add(start, window, part.weight, incoming)
            squares += incoming.squares
            digests.append(incoming.digest)
        give_back(group)
        self._parts.append((part, squares, group.receive_numbers(len(digests), part.rank) == digests))
        self._main.meter.count("up", "aggregate", physical=self._size * dtype.itemsize)


def begin_early(
    aggregation: Aggregation,
    store: Store,
    exponent: int | None,
    exchange: str,
    expected: Mapping[int, Collection[str]],
    former: Early | None = None,
) -> Early | None:
    """Begin, on all ranks alike; None on all of them where it would not help. Waits for nobody.

    It does not help where ranks share memory: sending costs the training its cores, and a sum from memory that all can
    read waits for nothing that is sent. Nor is there an early sum of updates of several lengths.

    exponent: of the scale; only the server's counts. exchange: `system.exchange`. expected: see `Communicator`. former:
    of an earlier round.
    """
    group, local = aggregation.group, aggregation.local
    if aggregation.witness is not None:
        return None  # nothing leaves before all have signed what they have got
    senders, own = sum(bool(expected[rank]) for rank in expected if rank), len(expected.get(group.rank, ()))
    lengths = {local.length(client) for client in {name for names in expected.values() for name in names}}
    if not senders or len(lengths) > 1 or exchange == "reduce" or (exchange == "auto" and senders > MOST_SENDERS):
        return None
    group.connect()
    if exchange == "auto" and aggregation.reads_in_place:  # all ranks know it by now
        return None
    pace = SendingPace(own, time.monotonic(), former._pace.s_per_byte if former else 0.0)
    if group.rank:
        return EarlySender(aggregation, store, None, pace, lengths.pop())
    return EarlyReceiver(aggregation, store, exponent, pace, lengths.pop(), expected)


def _void(key: str, rank: int) -> str:
    """Where a rank says that an update that it has put does not count."""
    return f"{key}/{rank}/void"
