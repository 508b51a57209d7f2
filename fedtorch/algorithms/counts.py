"""The rule of a counting run: silos send counts, the server adds them, and everybody gets the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm, Way
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.travels import Travels
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.stats.counting import SiloCounts, Unit
from fedtorch.stats.questions import DIGESTS, RECUR
from fedtorch.stats.recurring import in_common, read_key
from fedtorch.stats.rule import CountRule
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

    rule: CountRule
    """what is asked, and where the numbers stand"""

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

    @property
    def travels(self) -> Travels:
        """A number for each cell, in float64; the weights stay as they are."""
        return Travels((COUNTS,), Layout((COUNTS,), ((self.rule.plan.size,),), torch.float64), NoModel)

    def client_update(self, job: ClientJob) -> Report:
        """Count the round's cells; where it is promised, with noise."""
        rule, plan, silo = self.rule, self.rule.plan, job.silo
        steps: Any = None if silo is None else silo.begin("counts", [])
        rows: Sequence[Any] = job.examples if silo is None else silo.examples
        places = [[at] for at in range(len(rows))] if silo is None else silo.units
        units = [Unit(tuple(rows[at] for at in unit)) for unit in places]
        key = b"" if rule.recur is None else read_key(rule.recur.key)
        counts = SiloCounts(plan, rule.words, units, None if steps is None else steps.choose, key)
        announced = rule.announced(job.received[COUNTS].numpy(), job.round)
        out = np.zeros(plan.size)
        counts.fill(out, plan.silos.index(job.client.name), job.round, announced)
        if steps is not None:
            steps.release(out, rule.unasked(announced, job.round))
        job.send(COUNTS, torch.from_numpy(out))
        return Report(job.client.name, examples=1, steps=1)

    def own_weight(self, report: Report) -> float | None:
        """One weight for all; the mechanism adds numbers as they are."""
        return 1.0

    def measure(self, server: ServerState, updates: Any, weights: Sequence[float]) -> Mapping[str, float]:
        """How many silos were counted."""
        return {"stats/silos": float(len(weights))}

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """Put the round's numbers in their places; of digests of rows nothing is kept but how many recur."""
        server.tensors[COUNTS] += grad
        digests, recur = self.rule.plan.of(DIGESTS), self.rule.plan.of(RECUR)
        if digests is not None and recur is not None and server.round == digests.round:
            vector = server.tensors[COUNTS].numpy()
            vector[recur.block(0)] = in_common([vector[digests.block(at)] for at in range(digests.blocks)])
            vector[digests.start : digests.stop] = 0.0


class CountsByRound(Counts):
    """Counts of whose vector only the cells of a round travel; where parties sign, all of it does."""

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """Up and down: cells of the round, and who took part in it; what is received is of the round before."""
        plan, round = self.rule.plan, max(0, round - 1) if way == "received" else round
        own = [plan.present(round), *(slice(place.start, place.stop) for place in plan.in_round(round))]
        return Places(torch.cat([torch.arange(part.start, part.stop) for part in own]), layout.size)
