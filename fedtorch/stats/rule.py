"""How a run counts: all that its parties have to know the same, beside rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedtorch.stats.prefixes import Noise, Search, Vector
from fedtorch.stats.questions import CountPlan
from fedtorch.stats.settings import Recur, Words


@dataclass(frozen=True)
class CountRule:
    """A count: what is asked, where the numbers stand, and what is announced once some of them are known."""

    plan: CountPlan
    """where which number is"""
    noise: Noise = Noise(0.0)
    """on the numbers"""
    least: int = 1
    """the least count of a beginning that is followed, without noise"""
    words: Words | None = None
    """how words are counted"""
    recur: Recur | None = None
    """how rows are compared; None: they are not"""

    def announced(self, vector: Vector, round: int) -> dict[str, list[bytes]]:
        """Question -> beginnings that are counted in a round; of one with names found before, these names.

        vector: as released by the rounds before.
        """
        found = {}
        for place in self.plan.in_round(round):
            question = place.question
            if place.level is not None:
                found[question.name] = self.search(question.name).beginnings(vector, place.level)
            elif question.named_by:
                names = self.search(question.named_by).names(vector, round)
                found[question.name] = [name.text for name in names[: place.size]]
        return found

    def unasked(self, announced: Mapping[str, Collection[bytes]], round: int) -> set[int]:
        """Tables of a round, by their place among its tables, of which no cell is asked for. announced: see there."""
        asked = [announced.get(place.question.name, [b""]) for place in self.plan.in_round(round)]
        return {at for at, beginnings in enumerate(asked) if not beginnings}

    def releases(self, vector: Vector) -> int:
        """How many tables have left, once all rounds are over: those with a cell that was asked for."""
        plan = self.plan
        unasked = (self.unasked(self.announced(vector, round), round) for round in range(plan.rounds))
        return plan.releases - sum(map(len, unasked))

    def search(self, name: str) -> Search:
        """How names of a question are found."""
        question = next(each for each in self.plan.questions if each.name == name)
        return Search(self.plan, question, self.noise, self.least)
