"""FedNova (Wang et al. 2020): clients that take more steps do not get more say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

from fedtorch.algorithms.base import on_device
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import proximal
from fedtorch.algorithms.limits import Limits, trains_as, why_not_weighed
from fedtorch.core.errors import ConfigError
from fedtorch.core.update import Report
from fedtorch.train.engine import GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig


@dataclass(frozen=True)
class FedNova(FedAvg):
    """w^{t+1} = x − tau_eff · lr · Σ p_i d_i, with d_i = (x − y_i)/(lr·‖a_i‖₁) and tau_eff = Σ p_i ‖a_i‖₁.

    lr cancels, so every client may have its own: the pseudo-gradients x − y_i are summed with weights
    tau_eff·p_i/‖a_i‖₁, which may add up to more or less than 1. Equal numbers of steps give FedAvg.
    """

    mu: float = 0.0
    """proximal term of the local objective, as in FedProx; changes ‖a_i‖₁"""

    def check(self, hp: ClientConfig, task: Any) -> None:
        """The normaliser is known for SGD with a constant rate, momentum or a proximal term but not both."""
        known = hp.optimizer == "sgd" and hp.schedule == "constant" and not hp.weight_decay
        known &= not hp.warmup_steps and not hp.warmup_ratio
        if not known or hp.max_grad_norm is not None or (self.mu and hp.momentum):
            raise ConfigError(
                "algorithm.name is `fednova`, whose normaliser needs client.optimizer: sgd, client.schedule: constant, "
                "no weight_decay, warm-up or max_grad_norm, and not both client.momentum and algorithm.mu"
            )

    @on_device
    def client_update(self, job: ClientJob) -> Report:
        """As FedAvg; reports ‖a_i‖₁ as `normaliser`."""
        curve = job.train(job.received["weights"], before_step=self.correction(job))
        job.send_difference(job.received["weights"])
        size = normaliser(curve.taken, momentum=job.hp.momentum, alpha=job.hp.lr * self.mu)
        return self.report(job, curve, normaliser=size)

    @on_device
    def correction(self, job: ClientJob) -> GradientHook | None:
        """FedProx's, if mu is set."""
        return proximal(job.engine, job.received["weights"], self.mu)

    @property
    def limits(self) -> Limits:
        """Its weights are no shares."""
        why_not = "weighs updates by their steps, with weights that are no shares of a whole"
        return replace(
            super().limits,
            why_not_robust=why_not,
            why_not_record=why_not_weighed(self.weights) if trains_as(type(self), FedNova) else None,
            public_numbers=("normaliser",),
        )

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """tau_eff·p_i/‖a_i‖₁ with p_i as in `weights`; a client that took no step weighs 0."""
        usual = super().weigh(reports)
        sizes = [report.extra["normaliser"] for report in reports]
        effective = fsum(weight * size for weight, size in zip(usual, sizes, strict=True))
        return [effective * weight / size if size else 0.0 for weight, size in zip(usual, sizes, strict=True)]


def normaliser(steps: int, *, momentum: float = 0.0, alpha: float = 0.0) -> float:
    """‖a_i‖₁ of `steps` local steps: plain SGD, with momentum rho, or with a proximal term, alpha = lr·mu.

    FedNova, section 4: steps; [steps − rho(1 − rho^steps)/(1 − rho)]/(1 − rho); (1 − (1 − alpha)^steps)/alpha.
    """
    if momentum:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    if alpha:
        return (1 - (1 - alpha) ** steps) / alpha
    return float(steps)
