"""RoLoRA (Chen et al. 2024, arXiv 2409.02346; 2025, 2502.01755): B and A in turn; their mean is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedtorch.algorithms.adapters.factors import A, B, pairs_of, places_without
from fedtorch.algorithms.base import Way
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.core.errors import ConfigError
from fedtorch.core.places import Places
from fedtorch.core.settings import ServerConfig
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig


@dataclass(frozen=True)
class RoLoRA(FedAvg):
    """Rounds 1, 3, 5, ... train B, the others A; whatever else is shared (a head) is trained in all of them.

    B first, for with B = 0 the gradient of A is zero. The factor at rest is the same at all clients, so
    Σ p_i B_i A_i = B̄ Ā. What rests does not travel, in neither direction.
    """

    def resting(self, round: int) -> str:
        """Part of the names of the factors that are not trained in this round (from 0)."""
        return A if round % 2 == 0 else B

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """All but the factor at rest; the server's step changes nothing else.

        Raises:
            ConfigError: the model has no layer both of whose factors travel.
        """
        if way == "received":
            return None
        if not any(pair.a and pair.b for pair in pairs_of(layout)):
            raise ConfigError(
                "algorithm.name is rolora but no layer of the model has both factors among the shared parameters; set "
                "task.model.adapter, and take them out of partition.private and partition.frozen"
            )
        return places_without(layout, self.resting(round))

    def check_server(self, server: ServerConfig) -> None:
        """Refuses what moves a factor whose combined update is 0."""
        if server.optimizer not in ("none", "sgd") or server.momentum:
            raise ConfigError(
                f"algorithm.name is rolora but server.optimizer is {server.optimizer}"
                + (f" with server.momentum {server.momentum}" if server.momentum else "")
                + ", whose moments would move the factor that rests; set server.optimizer to none"
            )

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuses what moves parameters without a gradient."""
        if hp.weight_decay:
            raise ConfigError(
                f"algorithm.name is rolora but client.weight_decay is {hp.weight_decay}, which would shrink the factor "
                "that rests; set it to 0"
            )
        if hp.optimizer_state == "keep":
            raise ConfigError(
                "algorithm.name is rolora but client.optimizer_state is keep, whose moments would move the factor that "
                "rests; set it to reset"
            )

    def correction(self, job: ClientJob) -> GradientHook:
        """Takes out the gradients of the factor that rests."""
        kind = self.resting(job.round)
        shared = set(job.engine.shared.names)
        rests: Sequence[bool] = [kind in name for name in job.engine.trained_names if name in shared]

        @torch.no_grad()
        def rest(engine: Engine) -> None:
            for gradient, is_resting in zip(engine.shared_gradients(), rests, strict=True):
                if is_resting:
                    gradient.zero_()

        return rest
