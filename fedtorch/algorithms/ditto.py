"""Ditto (Li et al. 2021): a personal model beside the global one, pulled towards it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from fedtorch.algorithms.base import on_device
from fedtorch.algorithms.fedprox import proximal
from fedtorch.algorithms.limits import Limits, trains_as, why_not_weighed
from fedtorch.algorithms.personal_model import PersonalModel
from fedtorch.core.state_keys import PERSONAL
from fedtorch.core.update import Report
from fedtorch.train.job import ClientJob


@dataclass(frozen=True)
class Ditto(PersonalModel):
    """v_i ← v_i − lr·(∇f_i(v_i) + lam·(v_i − w^t)); the global model is FedAvg's and never sees v_i.

    w^t is the model received this round. v_i starts at w^0, is kept in the client's state, never sent, and is what
    the client is evaluated with. The personal pass comes first, over epochs of its own; the authors' code takes a
    personal and a global step in turn on the same mini-batch.
    """

    lam: float = 0.1
    """lambda, the pull of the personal model towards the received one; 0 is local training"""
    form: Literal["full", "simplified"] = "full"
    """train a global model beside the personal one, or average the personal ones"""
    personal_epochs: int | None = None
    """epochs of the personal pass; null: as many as the global pass"""
    personal_lr: float | None = None
    """learning rate of the personal pass; null: the client's"""

    @property
    def limits(self) -> Limits:
        """Both passes are on the account of a client's rows, where that is kept."""
        if not trains_as(type(self), Ditto):
            return super().limits
        why_not = why_not_weighed(self.weights)
        if self.personal_epochs is not None:
            why_not = "has personal_epochs, so that its passes are of unlike length; remove algorithm.personal_epochs"
        return replace(super().limits, why_not_record=why_not, trainings=1 if self.form == "simplified" else 2)

    @on_device
    def client_update(self, job: ClientJob) -> Report:
        """Personal pass, then FedAvg's (full) or nothing more (simplified)."""
        received = job.received["weights"]
        hp: Any = job.hp if self.personal_lr is None else replace(job.hp, lr=self.personal_lr)
        curve = job.train(
            job.state.tensors.get(PERSONAL, job.initial),
            purpose=PERSONAL,
            before_step=proximal(job.engine, received, self.lam if self.form == "full" else 2 * self.lam),
            epochs=self.personal_epochs,
            hp=hp,
        )
        job.state.tensors[PERSONAL] = job.engine.snapshot()
        if self.form == "full":
            return super().client_update(job)
        job.send_difference(received)
        return self.report(job, curve)
