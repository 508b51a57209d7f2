"""Clients that are lost at a chosen meeting of a run in one process, as with their rank in a run of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtorch.rounds.membership import Membership
from fedtorch.rounds.runner import Runner


def lose_at(runner: Runner, at: tuple[str, int, bool] | None, gone: Sequence[str]) -> None:
    """at: (phase, rounds done, is a round under way); None: nobody is lost."""

    class Losing(Membership):
        def meet(self, phase: str, meeting: Any, *, may_stop: bool = True) -> Any:
            found = super().meet(phase, meeting, may_stop=may_stop)
            if (phase, self.progress.round, self.progress.is_training) == at:
                self.lose(gone)
            return found

    runner.context.members.__class__ = Losing
