"""The rule of a counting run: silos send counts, the server adds them, and everybody gets the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm, Way
from fedtorch.algorithms.limits import Limits
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.stats.counting import SiloCounts, Unit
from fedtorch.stats.prefixes import Noise, Search, Vector
from fedtorch.stats.questions import CountPlan
from fedtorch.stats.settings import Words
from fedtorch.train.job import ClientJob

COUNTS = "counts"


@dataclass(frozen=True)
class NoModel:
    """Weights that nothing changes."""

    def weights(self, initial: Tensor, sums: Tensor) -> Tensor:
        """The initial ones."""
        return initial


@dataclass(frozen=True)
class Counts(Algorithm):
    """Each round fills its places of one vector of counts, with the sum of all silos' numbers."""

    exchanged_vectors: ClassVar[tuple[str, ...]] = (COUNTS,)

    plan: CountPlan
    """where which number is"""
    noise: Noise = Noise(0.0)
    """on the numbers"""
    least: int = 1
    """the least count of a beginning that is followed, without noise"""
    words: Words | None = None
    """how words are counted"""

    @property
    def limits(self) -> Limits:
        """Nothing is trained; whatever leaves is counts, noised where that is promised."""
        return replace(
            super().limits,
            engines=("torch",),
            why_not_deepspeed="trains nothing",
            steps_with_optimizer=False,
            needs_labels=False,
            reads_initial=True,
            why_not_private="",
            why_not_record="",
            why_not_saved="counts in one step",
            why_not_rounded="sends whole numbers, which are added exactly",
            why_not_robust="adds counts, of which none is an outlier",
        )

    def exchanged_layout(self, shared: Layout) -> Layout:
        """A number for each cell, in float64."""
        return Layout((COUNTS,), ((self.plan.size,),), torch.float64)

    def model(self) -> Any:
        """Of nothing."""
        return NoModel()

    def client_update(self, job: ClientJob) -> Report:
        """Count the round's cells; where it is promised, with noise."""
        plan, silo = self.plan, job.silo
        steps: Any = None if silo is None else silo.begin("counts", [])
        rows: Sequence[Any] = job.examples if silo is None else silo.examples
        places = [[at] for at in range(len(rows))] if silo is None else silo.units
        units = [Unit(tuple(rows[at] for at in unit)) for unit in places]
        counts = SiloCounts(plan, self.words, units, None if steps is None else steps.choose)
        announced = self.announced(job.received[COUNTS].numpy(), job.round)
        out = np.zeros(plan.size)
        counts.fill(out, plan.silos.index(job.client.name), job.round, announced)
        if steps is not None:
            asked = [announced.get(place.question.name, [b""]) for place in plan.in_round(job.round)]
            steps.release(out, {at for at, names in enumerate(asked) if not names})
        job.send(COUNTS, torch.from_numpy(out))
        return Report(job.client.name, examples=1, steps=1)

    def announced(self, vector: Vector, round: int) -> dict[str, list[bytes]]:
        """Question -> beginnings that are counted in a round; of one with names found before, these names."""
        found = {}
        for place in self.plan.in_round(round):
            question = place.question
            if place.level is not None:
                found[question.name] = self.search(question.name).beginnings(vector, place.level)
            elif question.named_by:
                names = self.search(question.named_by).names(vector, round)
                found[question.name] = [name.text for name in names[: place.size]]
        return found

    def search(self, name: str) -> Search:
        """How names of a question are found."""
        question = next(each for each in self.plan.questions if each.name == name)
        return Search(self.plan, question, self.noise, self.least)

    def own_weight(self, report: Report) -> float | None:
        """The same for all; the mechanism adds numbers as they are."""
        return 1.0

    def measure(self, server: ServerState, updates: Any, weights: Sequence[float]) -> Mapping[str, float]:
        """How many silos were counted."""
        return {"stats/silos": float(len(weights))}

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """Put the round's numbers in their places."""
        server.tensors[COUNTS] += grad


class CountsByRound(Counts):
    """The same, of whose vector only the cells of a round travel; where all of it is to be checked, all of it does."""

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """Up and down: cells of the round, and who took part in it; what is received is of the round before."""
        plan, round = self.plan, max(0, round - 1) if way == "received" else round
        own = [plan.present(round), *(slice(place.start, place.stop) for place in plan.in_round(round))]
        return Places(torch.cat([torch.arange(part.start, part.stop) for part in own]), layout.size)
