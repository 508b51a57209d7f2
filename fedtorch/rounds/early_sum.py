"""The updates of a round that travel while others train, where the scale of their sum is known (`previous_scale`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedtorch.comm.sums.early import Early
from fedtorch.core.client import Client
from fedtorch.core.update import Report
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped


class EarlySum:
    """Called by all ranks alike, but for `put`; does nothing where the scale is not known before the round."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._early: Early | None = None

    def begin(self, drawn: Sequence[tuple[Client, int]], placed: Mapping[str, int]) -> None:
        """A round's training begins. drawn: by the names that updates have. placed: of these names -> worker."""
        context, scale = self._context, self._context.scale
        workers = context.components.topology.workers
        names = [client.name for client, _ in drawn]
        if scale is None or any(context.updates.places(name) is not None for name in names):
            return
        ranks = {name: workers[placed[name]][0] for name in names}
        self._early = context.members.retry_on_loss(
            "early",
            lambda: context.comm.begin_early(context.updates, scale.exponent, round=context.round, ranks=ranks),
        )

    def put(self, report: Report, draws: int) -> None:
        """A client of this rank is done, or was before the round; report: by the name that its update has."""
        context = self._context
        if self._early is None or not report.is_ok or report.client not in context.updates:
            return
        (weight,) = context.weighing.own([replace(report, draws=draws)])
        if weight:
            self._early.put(report.client, weight)

    def finish(self) -> None:
        """The round's training is over; afterwards nothing is on its way any more."""
        context, early = self._context, self._early
        if early is None:
            return
        self._early = None
        early.close(lambda: context.comm.heartbeat(phase="sums", round=context.round))
        try:
            context.members.barrier("sums")
        except Stopped:
            early.finish()
            raise
        context.members.retry_on_loss("sums", early.finish)
