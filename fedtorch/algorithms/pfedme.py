"""pFedMe (T Dinh et al. 2020): personal models as Moreau envelopes of the local losses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedtorch.algorithms.fedprox import proximal
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.personal_model import PersonalModel
from fedtorch.core.errors import ConfigError
from fedtorch.core.state_keys import PERSONAL
from fedtorch.core.update import Report
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.loop import train as take_steps
from fedtorch.train.settings import ClientConfig


@dataclass(frozen=True)
class PFedMe(PersonalModel):
    """Local iteration r: theta ≈ argmin f_i(theta; batch) + (lam/2)‖theta − w‖²; then w ← w − eta·lam·(w − theta).

    The minimisation takes `inner_steps` steps of the client's optimiser, from w, on one batch. theta is the personal
    model: kept, never sent, evaluated. Server: w^{t+1} = (1 − beta)·w^t + beta·mean(w_i), which is `server.optimizer:
    sgd` with lr beta (or `none` for beta 1).
    """

    lam: float = 15.0
    """lambda, the pull of theta towards w"""
    eta: float = 0.005
    """step size of w towards theta"""
    inner_steps: int = 5
    """optimiser steps per minimisation; their rate is client.lr"""

    @property
    def limits(self) -> Limits:
        """A client's own model is made anew in every round, by steps that are none of `job.train`."""
        return replace(super().limits, reads_initial=False, why_not_saved="takes its steps in a loop of its own")

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Every minimisation starts its optimiser afresh."""
        if hp.optimizer_state == "keep":
            raise ConfigError(
                "algorithm.name is `pfedme`, which cannot keep an optimiser; set client.optimizer_state: reset"
            )

    def client_update(self, job: ClientJob) -> Report:
        """One local iteration per planned step."""
        engine = job.engine
        weights = job.received["weights"].clone()
        losses: list[float] = []
        epochs: list[int] = []
        hp: Any = replace(job.hp, schedule="constant", schedule_floor=0.0, warmup_steps=0, warmup_ratio=0.0)
        plans = job.plans(len(job.examples), purpose="train")
        for index, step in enumerate(job.collated(plans, job.examples)):
            engine.start(weights, job.private, hp, steps=self.inner_steps, seed=job.seed(f"train/{index}"))
            inner = [step] * self.inner_steps
            curve = take_steps(engine, inner, job.task.loss, before_step=proximal(engine, weights, self.lam))
            losses.append(curve.losses[0])
            epochs.append(step.epoch)
            weights.sub_(engine.difference(weights), alpha=self.eta * self.lam)
            job.keep_private()
            job.on_step(index + 1)
        job.state.tensors[PERSONAL] = engine.snapshot()
        job.send_difference(job.received["weights"], weights)
        curve = LossCurve(tuple(losses), (0.0,) * len(losses), tuple(epochs))
        return self.report(job, curve)
