"""FedAvg and, with a server optimiser, FedOPT; with `weights: lorar`, the Lorar paper's method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from torch import Tensor

from fedtorch.algorithms.base import Algorithm, Updates, on_device
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.loss_reduction import LossReduction
from fedtorch.algorithms.measures import of_combination
from fedtorch.algorithms.robust.base import rule_of
from fedtorch.algorithms.weighting import KNOWN_ALONE, alone, normalised
from fedtorch.core.choices import Named
from fedtorch.core.errors import ConfigError
from fedtorch.core.overrides import overrides
from fedtorch.core.server import ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.train.engine import GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """McMahan et al. 2017: train locally from w^t, send w^t − w_i, average.

    The server applies `server.optimizer` to the average g = w^t − Σ p_i w_i. With `none` this is FedAvg,
    w^{t+1} = Σ p_i w_i; with `sgd` FedAvgM (the FedOPT of the Lorar paper); with `adam`, `yogi`, `adagrad`
    the FedOpt family of Reddi et al. 2020.
    """

    weights: Literal["size", "equal", "declared", "loss_reduction", "lorar"] = "size"
    """what a client's weight in the average is proportional to: n_i, 1, the number that `privacy.units` declares, ΔL_i,
    or n_i ΔL_i"""
    loss_reduction: LossReduction = field(default_factory=LossReduction)
    """how ΔL_i is measured"""
    robust: Annotated[str | dict[str, Any], Named()] | None = None
    """a rule in place of the weighted sum, for clients that may send anything: clip, centred_clipping, median,
    trimmed_mean, geometric_median, krum, multi_krum, or `module:Class`; as a mapping its `name` and fields"""

    @on_device
    def client_update(self, job: ClientJob) -> Report:
        """Train from the received weights and send the difference."""
        curve = job.train(job.received["weights"], before_step=self.correction(job))
        job.send_difference(job.received["weights"])
        return self.report(job, curve)

    @on_device
    def correction(self, job: ClientJob) -> GradientHook | None:
        """Term that is added to every step's gradient; nothing for FedAvg. FedProx and SCAFFOLD override this."""
        return None

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """Weigh the reports by `own_weight`, or what they have learned by `weighting.normalised`."""
        if self.weights in KNOWN_ALONE:
            return super().weigh(reports)
        return normalised(self.weights, reports, self.loss_reduction.cap)

    def own_weight(self, report: Report) -> float | None:
        """Weight of a client by itself, for `size` and `equal`; what was learned is known at the end."""
        return alone(self.weights, report)

    @property
    def limits(self) -> Limits:
        """With a rule in place of the sum it is none; and there can be one for one vector, which is summed as here."""
        is_own = overrides(type(self), "aggregate", FedAvg)
        why_not = "" if len(self.travels.vectors) == 1 else "does not send one vector of updates"
        return replace(
            super().limits,
            is_sum=self.robust is None and not is_own,
            why_not_robust="combines updates in a way of its own" if is_own else why_not,
        )

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> Tensor:
        """The weighted sum, or what `robust` makes of it."""
        return updates.weighted_sum(weights) if self.robust is None else rule_of(self.robust).combine(updates, weights)

    def measure(self, server: ServerState, updates: Updates, weights: Sequence[float]) -> Mapping[str, float]:
        """Counts of what `robust` did; of adapters also what averaging loses."""
        return of_combination(server, updates, weights)

    @on_device
    def report(self, job: ClientJob, curve: LossCurve, **extra: float) -> Report:
        """The client's numbers of the round, with ΔL_i under `loss_reduction`; `norm` and `max_abs` come later."""
        values = self.loss_reduction.values(curve)
        reduction = max(values) - min(values) if values else 0.0
        if not all(map(math.isfinite, values)):
            reduction = float("nan")  # max() and min() may pass over a NaN
        return Report(
            client=job.client.name,
            examples=len(job.examples),
            steps=len(curve),
            loss_first=values[0] if values else 0.0,
            loss_last=values[-1] if values else 0.0,
            loss_max=max(values, default=0.0),
            loss_min=min(values, default=0.0),
            loss_mean=sum(values) / len(values) if values else 0.0,
            curve=tuple(curve.objective()),
            extra={"loss_reduction": reduction, **curve.numbers(), **extra},
        )


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedAvg whose server takes steps of `server.optimizer`."""

    def check_server(self, server: ServerConfig) -> None:
        """Without an optimiser it would be FedAvg under another name."""
        if server.optimizer == "none":
            raise ConfigError(
                "server.optimizer is none but algorithm.name is fedopt; set server.optimizer, for example to sgd, "
                "or algorithm.name to fedavg"
            )
