"""Updates that travel while other clients still train, where the scale of their sum was fixed before the round.

What is sent early is provisional: the server keeps its sum apart, and takes it in an aggregation where it is exactly
the sum that is asked for then; otherwise all updates are sent again, as always (`aggregation`).

       the server                                        every other rank
    1. a thread agrees on `Op.EARLY`, round, length and  the same
       dtype; then the exponent of the scale, if the
       server has one, else it ends
    2. asks the store for announcements                  waits for clients that are done, or have handed over
    3.                                                   announces a part: all clients that are done and not sent, once
                                                         it pays (`sending_pace`)
    4. receives it window by window and adds it; adds    sends it: one update as it is, several as the sum of their
       its own clients' updates between the parts        whole numbers; then the digests, as in step 5 of `aggregation`
    5.                                                   has sent everything, before the meeting that brings reports
    6. after that meeting: receives what was announced   learns whether its sending failed
    7. in `aggregation`, in place of its steps 3 to 5, where scale, clients and weights are those of the parts: compares
       each part with the reports, and writes the sum

Nobody waits in a collective for a client that trains: parts are announced in the store, and received at once. While
this is under way the group is the threads' alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import NoReturn

import torch
from torch import Tensor

from fedtorch.comm.job.store import Store
from fedtorch.comm.sums.aggregation import Aggregation
from fedtorch.comm.sums.checks import SumCheck
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.comm.sums.sending_pace import SendingPace
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.windows import SUM_DTYPE
from fedtorch.core.errors import FedtorchError, PreflightError
from fedtorch.core.names import Names
from fedtorch.core.update import Report

_JOIN_S = 0.5  # between two signs of life while the thread is awaited

Queued = tuple[int, float]  # client, its own weight


class Early(ABC):
    """One rank's side of an early sum; its thread has the group until `finish`."""

    def __init__(
        self, aggregation: Aggregation, store: Store, exponent: int | None, pace: SendingPace, size: int
    ) -> None:
        """exponent: of the scale, on the server; None: it has none. size: numbers of each update that travel."""
        group, self._pace = aggregation.group, pace
        self._main, self._store, self._size, self._exponent = aggregation, store, size, exponent
        self._scale: SumScale
        aside = copy(group)  # the same sockets; what fails there is raised by `finish`
        aside.on_error = _fail
        self._aside = replace(aggregation, group=aside)
        self._key = f"early/{group.generation}/{group.sequence}/{aggregation.round}"
        self._queue: SimpleQueue[Queued | None] = SimpleQueue()
        self._problem = ""
        self._is_verdict = False  # is it known which rank is wrong, and said in the problem?
        self._is_void = False
        self._thread = Thread(target=self._run_guarded, name="fedtorch-early", daemon=True)
        self._thread.start()

    def put(self, client: str, weight: float) -> None:
        """The client's update is in the buffer, finite, and may be sent. weight: its own, not 0."""
        self._queue.put((Names.of(self._main.names).place(client), weight))

    def void(self) -> None:
        """An update that was put does not count: the sum is made anew. Nothing more of this rank travels early."""
        self._is_void = True

    def close(self, beat: Callable[[], None]) -> None:
        """No more clients come from this rank; elsewhere than on the server, wait until everything is sent.

        beat: called now and then. Raises nothing: that is for `finish`, when all ranks have met.
        """
        if self._main.group.rank:
            self._end(beat)

    def sum_of(
        self, scale: SumScale, weighted: Sequence[tuple[Report, float]], check: SumCheck, dtype: torch.dtype
    ) -> Tensor | None:
        """On the server: the sum of these updates at this scale, if it is that of the parts, and nothing failed.

        check: sees every part and the sum. dtype: of the result. None: all has to be sent again.
        """
        return None

    def finish(self) -> None:
        """After all ranks have met: on the server, receive what is announced and end.

        Raises:
            PreflightError: on the server, a rank's announcement cannot be; names the rank. The group is closed.
            FedtorchError: what was under way failed on this rank; the group is closed.
        """
        self._end(lambda: None)
        if (problem := self._problem) and not self._main.group.is_broken:
            self._main.group.drop()
            if self._is_verdict:
                raise PreflightError(problem)
            self._main.group.on_error(problem)

    def _end(self, beat: Callable[[], None]) -> None:
        self._queue.put(None)
        while self._thread.is_alive():
            self._thread.join(_JOIN_S)
            beat()

    def _run_guarded(self) -> None:
        try:
            if self._has_scale():
                self._run()
        except Exception as error:  # the text only, a live traceback keeps sockets open; raised by `finish`
            self._problem = (str(error) or type(error).__name__).splitlines()[0]
            self._is_verdict = isinstance(error, PreflightError)
            self._aside.group.drop()

    def _has_scale(self) -> bool:
        """Have all ranks agreed on the sum, and does the server have a scale for it?"""
        group, dtype = self._aside.group, self._main.local.dtype
        most = self._pace.num_clients * self._size * SUM_DTYPE.itemsize if group.rank else 0
        group.agree(Op.EARLY, round=self._main.round, length=self._size, dtype=dtype, num_bytes=most)
        told = torch.tensor([self._exponent is not None, self._exponent or 0], dtype=torch.int64)
        group.broadcast_numbers(told)
        is_known, exponent = told.tolist()
        self._exponent, self._scale = exponent if is_known else None, SumScale(exponent)
        return bool(is_known)

    @abstractmethod
    def _run(self) -> None:
        """The thread's work, until None is queued."""


def _fail(text: str) -> NoReturn:
    raise FedtorchError(text)
