"""FedDyn (Acar et al. 2021) in one file of a user's: clients and server each keep a vector from round to round.

Named in YAML as `algorithm: {name: "bent:Bent", alpha: 0.01}`, with this file's folder as the working
directory or on PYTHONPATH. It computes what the package's `feddyn` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedtorch import ClientJob, Engine, Kept, Layout, Limits, Report, ServerState
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.core.ranges import Positive


@dataclass(frozen=True)
class Bent(FedAvg):
    """Client: θ_i ≈ argmin f_i(x) − ⟨g_i, x⟩ + (α/2)‖x − θ‖², then g_i ← g_i − α(θ_i − θ); h is the mean of all g_i."""

    weights: Literal["equal"] = "equal"
    """other weights are refused: h would not be the mean"""
    alpha: Positive = 0.01
    """strength of the pull towards the received weights"""

    @property
    def limits(self) -> Limits:
        """No robust rule may replace the mean; the step is one of `server.optimizer`."""
        why_not = "keeps the mean of what its clients keep, which another rule would not give"
        return replace(super().limits, why_not_robust=why_not, steps_with_optimizer=True)

    def client_update(self, job: ClientJob) -> Report:
        """Train on the bent objective; the new g_i goes into the client's state."""
        received = job.received["weights"]
        own = job.state.tensors.get("g", torch.zeros_like(received))
        curve = job.train(received, before_step=self.correction(job))
        sent = job.send_difference(received)  # θ − θ_i
        job.state.tensors["g"] = own + self.alpha * sent
        return self.report(job, curve)

    def correction(self, job: ClientJob):
        """Every step adds α(x − θ) − g_i to the gradient; the hook returns what it added to the objective."""
        received = job.received["weights"]
        own = job.state.tensors.get("g", torch.zeros_like(received))
        anchors, pushes = (job.engine.shared_views(job.engine.placed(flat)) for flat in (received, own))

        @torch.no_grad()
        def bend(engine: Engine) -> Tensor:
            added = 0.0
            places = zip(engine.trained_shared(), engine.shared_gradients(), anchors, pushes, strict=True)
            for weight, gradient, anchor, push in places:
                moved = weight - anchor
                gradient += self.alpha * moved - push
                added += (0.5 * self.alpha * moved**2 - push * moved).sum()
            return added

        return bend

    def own_weight(self, report: Report) -> float:
        """Every client counts the same, however often it was drawn."""
        return 1.0

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """h ← h + (α/m)·|P|·grad, with grad = θ − mean of the θ_i; then a step along grad + h/α."""
        mean = server.tensors.get("h", torch.zeros_like(grad))
        mean = mean + self.alpha * len(server.accepted) / server.num_clients * grad
        server.tensors["h"] = mean
        server.optimizer.step(server, grad + mean / self.alpha)

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """g of a client that has trained, h of the server after a step: flat, as long as the shared weights."""
        shapes = {"g": (layout.size,), "h": (layout.size,)}
        return Kept(shapes, server=("h",), client=("g",), by_clients=True)
