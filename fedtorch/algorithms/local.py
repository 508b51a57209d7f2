"""Every client trains its own copy from w^0 and nothing is sent (the papers' finetuning, `paradigm: local`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedtorch.algorithms.limits import Limits, trains_as
from fedtorch.algorithms.personal_model import PersonalModel
from fedtorch.algorithms.travels import Travels
from fedtorch.core.state_keys import NOT_EVALUATED, PERSONAL, STOPPED
from fedtorch.core.update import Report
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve


@dataclass(frozen=True)
class Local(PersonalModel):
    """Each client continues its own model. A client whose dev score stopped rising (`eval.patience`) rests."""

    @property
    def travels(self) -> Travels:
        """Nothing travels."""
        return Travels(())

    @property
    def limits(self) -> Limits:
        """Nothing leaves a client but its scores."""
        return replace(super().limits, why_not_record="" if trains_as(type(self), Local) else None)

    def client_update(self, job: ClientJob) -> Report:
        """Train on from where this client was."""
        if job.state.numbers.get(STOPPED):
            return self.report(job, LossCurve())
        curve = job.train(job.state.tensors.get(PERSONAL, job.initial))
        job.state.tensors[PERSONAL] = job.engine.snapshot()
        job.state.numbers[NOT_EVALUATED] = 1  # the next evaluation counts for this client
        return self.report(job, curve)

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """Nothing is averaged."""
        return [0.0] * len(reports)
