"""FedProx (Li et al. 2020): every client is held near the weights it received."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtorch.algorithms.base import on_device
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg on h_i(w) = f_i(w) + (mu/2)·‖w − w^t‖², over the trained shared parameters."""

    mu: float = 0.01
    """strength of the pull; 0 is FedAvg to the bit. The Lorar paper's best is 1e-4"""

    @on_device
    def correction(self, job: ClientJob) -> GradientHook | None:
        """Adds mu·(w − w^t) to the gradient, once per optimiser step."""
        return proximal(job.engine, job.received["weights"], self.mu)


def proximal(engine: Engine, centre: Tensor, strength: float) -> GradientHook | None:
    """A hook that adds strength·(w − centre) to the gradients and returns (strength/2)·‖w − centre‖².

    centre: flat over the shared layout. None for strength 0: not even rounding changes then.
    The same gradient as adding the penalty to each micro-batch's loss and averaging, at one pass per step.
    """
    if strength == 0:
        return None
    anchors = engine.shared_views(engine.placed(centre))

    @torch.no_grad()
    def pull(engine: Engine) -> Tensor:
        differences = torch._foreach_sub([p.detach() for p in engine.trained_shared()], anchors)
        torch._foreach_add_(engine.shared_gradients(), differences, alpha=strength)
        norms = torch._foreach_norm(differences)
        return 0.5 * strength * torch.stack(list(norms)).square().sum()

    return pull
