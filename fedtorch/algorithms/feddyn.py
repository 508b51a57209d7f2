"""FedDyn (Acar et al. 2021): every client's objective is bent so that all of them share the optimum of their sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits, trains_as
from fedtorch.core.fused_add import add_multiple
from fedtorch.core.overrides import overrides
from fedtorch.core.ranges import Positive
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob

OWN, MEAN = "gradient", "mean_gradient"
"""Keys of g_i in a client's state and of h in the server's."""


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Client: θ_i ≈ argmin f_i(x) − ⟨g_i, x⟩ + (α/2)‖x − θ‖², then g_i ← g_i − α(θ_i − θ). Server: see `server_update`.

    θ are the received weights; "≈" is local training as in FedAvg, by any optimiser. g_i lives with the client, h with
    the server, both start at 0, and h is always the mean of the g_i of all clients: one that is not drawn, fails or is
    refused keeps its g_i. Where nothing moves any more g_i is the gradient of f_i, and their sum is 0: the optimum of
    all clients' losses, each counted alike, also where clients differ.
    """

    weights: Literal["equal"] = "equal"
    """the paper's mean is unweighted, also over clients that were drawn more than once"""
    alpha: Positive = 0.01
    """strength of the pull towards the received weights; the smaller, the longer a client's own steps may be"""

    @property
    def limits(self) -> Limits:
        """h is the mean of all g_i only if every update counts as it is; the optimiser steps along it."""
        why_not = "keeps the mean of what its clients keep, which another rule would not give"
        steps = not overrides(type(self), "server_update", FedDyn)
        found = replace(super().limits, why_not_robust=why_not, steps_with_optimizer=steps, steps_each_number=steps)
        return replace(found, why_not_record="" if trains_as(type(self), FedDyn) else None)

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """g_i and h, from the first round on, also of a client in rounds in which it is not drawn."""
        shapes = {OWN: (layout.size,), MEAN: (layout.size,)}
        return Kept(shapes, server=(MEAN,), client=(OWN,), by_clients=True)

    def client_update(self, job: ClientJob) -> Report:
        """Train on the bent objective; the new g_i goes into the client's state."""
        received = job.received["weights"]
        own = job.state.tensors.get(OWN, torch.zeros_like(received))
        curve = job.train(received, before_step=self.correction(job))
        sent = job.send_difference(received)  # θ − θ_i
        job.state.tensors[OWN] = torch.add(own, sent, alpha=self.alpha)
        return self.report(job, curve)

    def correction(self, job: ClientJob) -> GradientHook:
        """Adds α(x − θ) − g_i to the gradient; returns (α/2)‖x − θ‖² − ⟨g_i, x − θ⟩, which is 0 at the start."""
        received = job.received["weights"]
        own = job.state.tensors.get(OWN, torch.zeros_like(received))
        anchors, pushes = (job.engine.shared_views(job.engine.placed(flat)) for flat in (received, own))

        @torch.no_grad()
        def bend(engine: Engine) -> Tensor:
            moved = torch._foreach_sub([p.detach() for p in engine.trained_shared()], anchors)
            added = torch._foreach_sub(torch._foreach_mul(moved, self.alpha), pushes)
            torch._foreach_add_(engine.shared_gradients(), added)
            torch._foreach_sub_(added, pushes)  # (α/2)‖m‖² − ⟨g, m⟩ = ½⟨αm − g − g, m⟩
            return 0.5 * torch.stack([product.sum() for product in torch._foreach_mul(added, moved)]).sum()

        return bend

    def own_weight(self, report: Report) -> float | None:
        """Every client counts the same, however often it was drawn: else h would not be the mean of the g_i."""
        return 1.0

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """h ← h − (α/m) Σ_P (θ_i − θ) over the cohort P of m clients; θ ← mean of the θ_i − h/α.

        grad is θ − mean of the θ_i. `server.optimizer: none` is the paper's; another one steps along grad + h/α.
        """
        mean = server.tensors.setdefault(MEAN, torch.zeros_like(grad))
        add_multiple(mean, grad, self.alpha * (len(server.accepted) / server.num_clients))
        server.optimizer.step(server, grad + mean / self.alpha)
