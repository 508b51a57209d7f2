"""A plain mean at a scale that is public, so that a secure sum comes to the same bits; no privacy by itself.

Every client's update is clipped to C by the client, and cut to multiples of 2^-e, where e follows from C and the number
of clients alone; with equal weights the mean is Σ k_i · 2^-e / K over the K clients whose updates count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedtorch.core.errors import RefusedUpdatesError
from fedtorch.core.mechanism import Mechanism, RoundFacts
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.privacy.clip import bound, exponent_of
from fedtorch.privacy.secure_sum.answers import Answers
from fedtorch.privacy.secure_sum.openings import Openings
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, TooFewPartiesError, threshold_of


@dataclass
class Masking:
    """Settings that a run's secure sums share."""

    threshold: float
    """The share of a round's parties that must answer."""
    openings: Openings
    """On the server: whose sums were unmasked."""
    everybody: tuple[int, ...] | None = None
    """The ranks that take part whether their clients were drawn or not; None: those with a client in the sum."""
    counts: dict[int, int] = field(default_factory=dict)
    """round -> its parties in the first attempt, of which the threshold is a share"""
    count: int | None = None
    """how many parties the threshold is a share of, in every round and whoever is there; None: see `counts`"""
    answers: Answers | None = None
    """At a party that signs with a key of its own: what it has helped to unmask; None: nobody asks for it again."""
    attempt: int = 0
    """On the server: at the round under way. Another one has another cohort, so its sum is one of its own."""

    def parties(self, ranks: Iterable[int], members: Collection[int]) -> list[int]:
        """Who has a part in a sum, by the same rule at the server and at every worker.

        ranks: those with a client in it. members: the ranks that are there, without the server.
        """
        return sorted({*(ranks if self.everybody is None else self.everybody)} & {*members})

    def check(self, round: int, said: Sequence[int], threshold: int, expected: Sequence[int]) -> None:
        """At a worker, before it gives anything: what the server says of a sum is what this run's config comes to.

        said: the parties by the server's word. threshold: by it too; one above the config's hides more, and a server
        that knows of earlier losses in the round has it. expected: the parties as this worker counts them.

        Raises:
            BrokenProtocolError: it is not.
        """
        if list(said) != list(expected):
            raise BrokenProtocolError(
                f"the server names the parties {list(said)} for the secure sum of round {round + 1}, but they are "
                f"{list(expected)}; nothing is sent to it"
            )
        if threshold < (least := self.needed(round, expected)):
            raise BrokenProtocolError(
                f"the server names the threshold {threshold} of {len(expected)} parties for the secure sum of round "
                f"{round + 1}, but privacy.secure_sum.threshold {self.threshold:g} comes to {least}; nothing is sent "
                "to it"
            )

    def needed(self, round: int, parties: Collection[int]) -> int:
        """The threshold of the round, whatever was lost since its first attempt."""
        count = self.counts.setdefault(round, len(parties)) if self.count is None else self.count
        return threshold_of(self.threshold, count)


def exact_sum(updates: Any, exponent: int, clip: float, masking: Masking | None) -> Tensor:
    """Σ k_i of the accepted updates at the public scale 2^exponent, float64; the server looks at no single one.

    updates: `comm.sums.accepted.AcceptedUpdates`. masking: of a secure sum, of which the server sees nothing else and
    which is opened once: its outcome is given again after a loss. None: there is none.

    Raises:
        RefusedUpdatesError: of all clients: the secure sum of the round is given up.
    """
    if masking is None:
        total: Tensor = updates.whole_sum(exponent, clip)
        return total
    openings, round = masking.openings, (updates.round, masking.attempt)
    names = [report.client for report in updates.reports]
    if (settled := openings.settled(round)) is not None:
        total = updates.zeros()
        return total if settled.total is None else total.copy_(total.new_tensor(settled.total))
    if not openings.may_open(round, names):
        openings.settle(round, (), None)
        why = "the round's sum was opened with other clients before, and cannot be with these; it is given up"
        raise RefusedUpdatesError(dict.fromkeys(names, why))
    try:
        total = updates.masked_sum(exponent, clip, masking, lambda: openings.open(round, names))
    except (TooFewPartiesError, BrokenProtocolError, RefusedUpdatesError) as error:
        openings.settle(round, (), None)
        why = f"the secure sum of the round is given up: {error}"
        raise RefusedUpdatesError(dict.fromkeys(names, why)) from None
    openings.settle(round, names, total.numpy().copy())
    return total


class PublicSum(Mechanism):
    """The mechanism of `system.sum_scale: public`, and of `privacy.secure_sum` without noise."""

    def __init__(self, clip: float, num_clients: int, masking: Masking | None = None, *, is_mean: bool = True) -> None:
        """num_clients: of the run. masking: None: the server sees the updates.

        is_mean: do all updates weigh the same? Else the loop weighs them, at the same scale.
        """
        self._is_mean = is_mean
        self.clip, self.exponent, self.masking = clip, exponent_of(clip, num_clients), masking
        self.shows_losses, self.public_exponent = masking is None, self.exponent

    def outgoing(self, update: Tensor, report: Report) -> Report:
        """Clip and cut to whole numbers, in place.

        Raises:
            UpdateError: it is not finite.
        """
        bound(update, self.clip, self.exponent)
        return report

    def reported(self, report: Report) -> Report:
        """Without a secure sum everything; with it that the client took part, its rows, steps and seconds."""
        if self.masking is None:
            return report
        kept = Report(report.client, report.status, steps=report.steps, seconds=report.seconds)
        return replace(kept, examples=report.examples)

    def combine(self, updates: Any, otherwise: Callable[[Any], Tensor]) -> Tensor:
        """Mean with equal weights at the public scale, whatever the algorithm's are; or as the loop weighs them."""
        if not self._is_mean:
            return otherwise(updates)
        total = exact_sum(updates, self.exponent, self.clip, self.masking)
        return self.step_of(total, self.exponent, [r.client for r in updates.reports], updates.sum_dtype)

    def step_of(self, sums: Tensor, exponent: int, clients: Sequence[str], dtype: Any) -> Tensor:
        """Return the mean."""
        found: Tensor = sums.mul_(math.ldexp(1.0, -exponent) / max(1, len(clients))).to(dtype)
        return found

    def settled(self, round: int) -> Collection[str] | None:
        """Return what became of the round; None: nothing yet."""
        return None if self.masking is None else settled_clients(self.masking, round)

    def facts(self, round: int, facts: RoundFacts, server: ServerState) -> RoundFacts:
        """With a secure sum nothing by client: what stays local has no place in the records."""
        if self.masking is None:
            return facts
        taken = [report for report in facts.reports or () if report.status == "ok"]
        figures = {**facts.figures, "secure_sum/clients": float(len(taken))}
        return RoundFacts(None, seconds=facts.seconds, figures=figures)


def settled_clients(masking: Masking, round: int) -> Collection[str] | None:
    """Whose sum the round's is, where that is settled."""
    found = masking.openings.settled((round, masking.attempt))
    return None if found is None else found.clients
