"""What the server keeps between rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from fedtorch.core.update import Report
from fedtorch.core.weights import Layout


@dataclass
class ServerState:
    """All that outlives a round on the server; a checkpoint is exactly `tensors` and `numbers`.

    tensors: `weights` (flat shared parameters), the algorithm's further flat vectors (SCAFFOLD's `control`),
        the server optimiser's buffers (`momentum`, `second_moment`), the best weights so far (`best`).
    numbers: `round` (rounds done), `server_steps`, `best_round`, `best_score`, early-stopping counters ...
    num_clients: N. num_rounds: of the whole run. layout: of each shared vector.
    accepted: the reports behind the step being taken; set by the runner before `server_update`.
    optimizer: the rule of the config's `server` section, not state.
    """

    tensors: dict[str, Tensor]
    numbers: dict[str, int | float] = field(default_factory=dict)
    num_clients: int = 0
    accepted: list[Report] = field(default_factory=list)
    optimizer: ServerOptimizer = field(default_factory=lambda: ServerOptimizer())
    num_rounds: int = 0
    layout: Layout | None = None

    @property
    def weights(self) -> Tensor:
        """The flat shared parameters, shape (size,); rules change them in place."""
        return self.tensors["weights"]


@dataclass(frozen=True)
class ServerOptimizer:
    """How the server turns the aggregated pseudo-gradient g into new weights.

    none: w − g (FedAvg). sgd: b = momentum·b + g; w − lr·b (FedAvgM; Lorar's FedOPT with lr 1, momentum 0.9).
    adam, yogi, adagrad: Reddi et al. 2020, Algorithm 2, with Δ = −g:
        m = beta1·m + (1 − beta1)·Δ;  v by rule;  w + lr·m / (sqrt(v) + tau), v starting at tau².
    bias_correction: lr · sqrt(1 − beta2^k) / (1 − beta1^k) in the k-th step, with v starting at 0 (as in
        TensorFlow Federated); not part of the published rules.
    adamw: torch's AdamW with `eps`, one step per round; the rate rises over `warmup_ratio` of the rounds and, with
        `schedule: linear`, falls to 0 over the rest (both as transformers' schedules). `no_decay`: parameters without
        weight decay, by shell patterns.
    """

    optimizer: str = "none"
    lr: float = 1.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False
    eps: float = 1e-8
    weight_decay: float = 0.0
    no_decay: tuple[str, ...] = ()
    schedule: str = "constant"
    warmup_ratio: float = 0.0

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
        if self.optimizer == "adamw":
            self._adamw(server, grad, steps - 1)
            return
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

    def rate(self, taken: int, num_rounds: int) -> float:
        """The learning rate of the step after `taken` steps; with a warm-up that of the first one is 0."""
        warmup = math.ceil(self.warmup_ratio * num_rounds)
        if taken < warmup:
            return self.lr * taken / warmup
        if self.schedule == "constant":
            return self.lr
        return self.lr * max(0.0, (num_rounds - taken) / max(1, num_rounds - warmup))

    def _adamw(self, server: ServerState, grad: Tensor, taken: int) -> None:
        assert server.layout is not None
        moments = (server.tensors["first_moment"], server.tensors.setdefault("second_moment", torch.zeros_like(grad)))
        vectors = [server.layout.view(flat) for flat in (server.weights, grad, *moments)]
        for is_spared in (False, True):
            names = [n for n in server.layout.names if any(fnmatchcase(n, p) for p in self.no_decay) == is_spared]
            steps = [torch.tensor(float(taken)) for _ in names]
            params, grads, firsts, seconds = ([view[name] for name in names] for view in vectors)
            adamw(
                params, grads, firsts, seconds, [], steps,
                fused=True, amsgrad=False, maximize=False, beta1=self.beta1, beta2=self.beta2, eps=self.eps,
                lr=self.rate(taken, server.num_rounds), weight_decay=0.0 if is_spared else self.weight_decay,
            )  # fmt: skip
