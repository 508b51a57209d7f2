"""The updates of a round that travel while others train, where the scale of their sum is known (`previous_scale`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fedtorch.comm.sums.early import Early
from fedtorch.core.client import Client
from fedtorch.core.places import Places
from fedtorch.core.update import Report
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped


class EarlySum:
    """Called by all ranks alike, but for `put` and `take_back`; does nothing where the scale is not known before."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._early: Early | None = None
        self._draws: dict[str, int] = {}
        self._done: set[str] = set()

    def begin(self, drawn: Sequence[tuple[Client, int]], placed: Mapping[str, int]) -> None:
        """A round's training begins. drawn: by the names that updates have. placed: of these names -> worker."""
        context, scale = self._context, self._context.scale
        workers = context.components.topology.workers
        names = [client.name for client, _ in drawn]
        self._draws, self._done = {client.name: draws for client, draws in drawn}, set()
        if scale is None or len({_digest(context.updates.places(name)) for name in names}) != 1:
            return
        ranks = {name: workers[placed[name]][0] for name in names}
        self._early = context.comm.begin_early(context.updates, scale.exponent, round=context.round, ranks=ranks)

    @property
    def is_under_way(self) -> bool:
        """May an update travel as soon as it is `put`?"""
        return self._early is not None

    def put(self, report: Report) -> None:
        """A client's update is in the buffer, if there is one; report: by the name that the update has."""
        context, name = self._context, report.client
        if self._early is None or name in self._done or not report.is_ok or name not in context.updates:
            return
        (weight,) = context.weighing.own([replace(report, draws=self._draws[name])])
        self._done.add(name)
        if weight:
            self._early.put(name, weight)

    def take_back(self, name: str) -> None:
        """The client failed; if its update travels already, the round is summed anew."""
        if self._early is not None and name in self._done:
            self._early.void()
        self._context.updates.clear([name])

    def close(self) -> None:
        """The round's training is over: elsewhere than on the server, wait until everything is sent."""
        context = self._context
        if self._early is not None:
            self._early.close(lambda: context.comm.heartbeat(phase="sums", round=context.round))

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Within it all ranks meet; afterwards nothing is on its way any more."""
        early, self._early = self._early, None
        try:
            yield
        except Stopped:
            if early is not None:
                early.finish()
            raise
        if early is not None:
            self._context.members.retry_on_loss("sums", early.finish)


def _digest(places: Places | None) -> str:
    """Equal exactly where the same numbers travel."""
    return "" if places is None else places.digest
