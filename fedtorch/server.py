"""What the server keeps between rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtorch.update import Report


@dataclass
class ServerState:
    """All that outlives a round on the server; a checkpoint is exactly `tensors` and `numbers`.

    tensors: `weights` (flat shared parameters), the algorithm's further flat vectors (SCAFFOLD's `control`),
        the server optimiser's buffers (`momentum`, `second_moment`), the best weights so far (`best`).
    numbers: `round` (rounds done), `server_steps`, `best_round`, `best_score`, early-stopping counters ...
    num_clients: N. accepted: the reports behind the step being taken; set by the runner before `server_update`.
    optimizer: the rule of the config's `server` section, not state.
    """

    tensors: dict[str, Tensor]
    numbers: dict[str, int | float] = field(default_factory=dict)
    num_clients: int = 0
    accepted: list[Report] = field(default_factory=list)
    optimizer: ServerOptimizer = field(default_factory=lambda: ServerOptimizer())

    @property
    def weights(self) -> Tensor:
        """The flat shared parameters, shape (size,); rules change them in place."""
        return self.tensors["weights"]


@dataclass(frozen=True)
class ServerOptimizer:
    """How the server turns the aggregated pseudo-gradient g into new weights (fl-algorithms.md section 5).

    none: w − g (FedAvg). sgd: b = momentum·b + g; w − lr·b (FedAvgM; Lorar's FedOPT with lr 1, momentum 0.9).
    adam, yogi, adagrad: Reddi et al. 2020, Algorithm 2, with Δ = −g:
        m = beta1·m + (1 − beta1)·Δ;  v by rule;  w + lr·m / (sqrt(v) + tau), v starting at tau².
    bias_correction: lr · sqrt(1 − beta2^k) / (1 − beta1^k) in the k-th step, with v starting at 0 (as in
        TensorFlow Federated); not part of the published rules.
    """

    optimizer: str = "none"
    lr: float = 1.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False

    @torch.no_grad()
    def step(self, server: ServerState, grad: Tensor) -> None:
        """Change `server.weights` in place by one step; buffers are kept in `server.tensors`. May change `grad`."""
        weights = server.weights
        if self.optimizer == "none":
            weights.sub_(grad)
            return
        if self.optimizer == "sgd":
            if self.momentum:
                buffer = server.tensors.setdefault("momentum", torch.zeros_like(weights))
                grad = buffer.mul_(self.momentum).add_(grad)
            weights.sub_(grad, alpha=self.lr)
            return
        steps = int(server.numbers.get("server_steps", 0)) + 1
        server.numbers["server_steps"] = steps
        start = 0.0 if self.bias_correction else self.tau**2
        first = server.tensors.setdefault("first_moment", torch.zeros_like(weights))
        second = server.tensors.setdefault("second_moment", torch.full_like(weights, start))
        first.mul_(self.beta1).add_(grad, alpha=self.beta1 - 1)
        square = grad.square_()
        if self.optimizer == "adam":
            second.mul_(self.beta2).add_(square, alpha=1 - self.beta2)
        elif self.optimizer == "yogi":
            second.sub_(square * torch.sign(second - square), alpha=1 - self.beta2)
        elif self.optimizer == "adagrad":
            second.add_(square)
        else:
            raise ValueError(f"unknown server optimizer {self.optimizer!r}")
        rate = self.lr
        if self.bias_correction:
            rate *= (1 - self.beta2**steps) ** 0.5 / (1 - self.beta1**steps)
        weights.addcdiv_(first, second.sqrt().add_(self.tau), value=rate)
