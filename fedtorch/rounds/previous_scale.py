"""The scale of a round's sum by what the round before came to: it is known before anybody trains."""

from __future__ import annotations

from collections.abc import Sequence

from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import SUM_EXPONENT
from fedtorch.core.update import Report
from fedtorch.rounds.weighing import Weighing


class PreviousScale:
    """`system.sum_scale: previous`: from the largest elements of the last round in which the server took a step.

    In the first round, and after one whose updates were all zero, the scale is that of the reports. What decides is
    among the server's numbers, so a run that is resumed goes on with the same bits.
    """

    def __init__(self, weighing: Weighing, server: ServerState) -> None:
        """weighing: by an algorithm without `why_not_ahead`. server: on other ranks nothing is in it."""
        self._weighing, self._server = weighing, server

    @property
    def exponent(self) -> int | None:
        """Exponent of the coming round's scale, on the server; None: it is not known."""
        number = self._server.numbers.get(SUM_EXPONENT)
        return None if number is None else int(number)

    def fix(self, updates: AcceptedUpdates) -> None:
        """Make the round's sum at the scale, where it is known."""
        if self.exponent is not None:
            reports, weighing = updates.reports, self._weighing
            updates.fix_scale(self.exponent, weighing.own(reports), weighing.divisor(reports))

    def learn(self, accepted: Sequence[Report]) -> None:
        """On the server, once its step is taken: the next round's scale."""
        scale = SumScale.ahead(self._weighing.own(accepted), [report.max_abs for report in accepted])
        if scale is None:
            self._server.numbers.pop(SUM_EXPONENT, None)
        else:
            self._server.numbers[SUM_EXPONENT] = scale.exponent


class PublicScale(PreviousScale):
    """`system.sum_scale: public` where updates weigh by their age: one scale for the whole run."""

    def __init__(self, weighing: Weighing, server: ServerState, exponent: int) -> None:
        """exponent: of the mechanism, at whose scale clients have cut their updates."""
        super().__init__(weighing, server)
        self._exponent = exponent

    @property
    def exponent(self) -> int | None:
        """Exponent of every round's scale."""
        return self._exponent

    def fix(self, updates: AcceptedUpdates) -> None:
        """Make the round's sum at the scale, however small the updates are."""
        reports, weighing = updates.reports, self._weighing
        updates.fix_scale(self._exponent, weighing.own(reports), weighing.divisor(reports), always=True)

    def learn(self, accepted: Sequence[Report]) -> None:
        """Nothing."""
