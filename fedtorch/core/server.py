"""State that the server keeps between rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from fedtorch.core import state_keys as keys
from fedtorch.core.fused_add import adamw_step, add_multiple, square_root
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout


@dataclass
class ServerState:
    """All that outlives a round on the server; a checkpoint is exactly `tensors` and `numbers`."""

    tensors: dict[str, Tensor]
    """`weights` (flat shared parameters), the algorithm's further flat vectors (SCAFFOLD's `control`), the server
    optimiser's buffers, the best weights so far; see `state_keys`."""
    numbers: dict[str, int | float] = field(default_factory=dict)
    """Steps of the optimiser, best round and score, early-stopping counters; see `state_keys`."""
    num_clients: int = 0
    """N."""
    accepted: list[Report] = field(default_factory=list)
    """The reports behind the step being taken; set by the runner before `server_update`."""
    optimizer: ServerOptimizer = field(default_factory=lambda: ServerOptimizer())
    """The rule of the config's `server` section; not state."""
    round: int = 0
    """The round (from 0) of the step being taken; set by the runner before `server_update`."""
    num_rounds: int = 0
    """Of the whole run."""
    run_seed: int = 0
    """`run.seed`; not state."""
    layout: Layout | None = None
    """Of each vector that is exchanged: that of the shared weights, unless the algorithm says another."""
    private: Layout | None = None
    """Of what every client keeps for itself."""

    @property
    def weights(self) -> Tensor:
        """The flat shared parameters, shape (size,); rules change them in place."""
        return self.tensors[keys.WEIGHTS]

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the exchanged vectors, and of the sums that they are changed by."""
        return self.weights.dtype if self.layout is None else self.layout.dtype


class ServerOptimizer:
    """How the server turns the aggregated pseudo-gradient g into new weights: the `server` section of a config.

    none: w − g (FedAvg). sgd: b = momentum·b + g; w − lr·b (FedAvgM; Lorar's FedOPT with lr 1, momentum 0.9).
    nesterov: w − lr·(g + momentum·b) (DiLoCo). Both with the bits of torch.optim.SGD.
    adam, yogi, adagrad: Reddi et al. 2020, Algorithm 2, with Δ = −g:
        m = beta1·m + (1 − beta1)·Δ;  v by rule;  w + lr·m / (sqrt(v) + tau), v starting at tau².
    bias_correction: lr · sqrt(1 − beta2^k) / (1 − beta1^k) in the k-th step, with v starting at 0 (as in
        TensorFlow Federated); not part of the published rules.
    adamw: torch's AdamW with `eps`, one step per round; the rate rises over `warmup_ratio` of the rounds and, with
        `schedule: linear`, falls to 0 over the rest (both as transformers' schedules). `no_decay`: parameters without
        weight decay, by shell patterns.
    """

    def __init__(self, settings: ServerConfig | None = None) -> None:
        self.settings = (settings or ServerConfig()).resolved()
        # null is left only where the rule uses neither
        self._lr, self._beta1 = self.settings.lr or 0.0, self.settings.beta1 or 0.0

    @torch.no_grad()
    def step(self, server: ServerState, grad: Tensor) -> None:
        """Change `server.weights` in place by one step; buffers are kept in `server.tensors`. May change `grad`."""
        weights, rule = server.weights, self.settings
        if rule.optimizer == "none":
            weights.sub_(grad)
            return
        if rule.optimizer == "sgd":
            if rule.momentum:
                buffer = server.tensors.setdefault(keys.MOMENTUM, torch.zeros_like(weights))
                buffer.mul_(rule.momentum).add_(grad)
                if rule.nesterov:  # no further vector
                    add_multiple(grad, buffer, rule.momentum)
                else:
                    grad = buffer
            add_multiple(weights, grad, -self._lr)
            return
        steps = int(server.numbers.get(keys.SERVER_STEPS, 0)) + 1
        server.numbers[keys.SERVER_STEPS] = steps
        if rule.optimizer == "adamw":
            self._adamw(server, grad, steps - 1)
        else:
            self._adaptive(server, grad, steps)

    def rate(self, taken: int, num_rounds: int) -> float:
        """The learning rate of the step after `taken` steps; with a warm-up that of the first one is 0."""
        warmup = math.ceil(self.settings.warmup_ratio * num_rounds)
        if taken < warmup:
            return self._lr * taken / warmup
        if self.settings.schedule == "constant":
            return self._lr
        return self._lr * max(0.0, (num_rounds - taken) / max(1, num_rounds - warmup))

    def _adaptive(self, server: ServerState, grad: Tensor, steps: int) -> None:
        """The `steps`-th step of adam, yogi or adagrad."""
        weights, rule = server.weights, self.settings
        first = server.tensors.setdefault(keys.FIRST_MOMENT, torch.zeros_like(weights))
        start = 0.0 if rule.bias_correction else rule.tau**2
        second = server.tensors.setdefault(keys.SECOND_MOMENT, torch.full_like(weights, start))
        add_multiple(first.mul_(self._beta1), grad, self._beta1 - 1)
        square = grad.square_()
        if rule.optimizer == "adam":
            add_multiple(second.mul_(rule.beta2), square, 1 - rule.beta2)
        elif rule.optimizer == "yogi":
            add_multiple(second, square * torch.sign(second - square), rule.beta2 - 1)
        elif rule.optimizer == "adagrad":
            second.add_(square)
        else:
            raise ValueError(f"unknown server optimizer {rule.optimizer!r}")
        rate = self._lr
        if rule.bias_correction:
            rate *= (1 - rule.beta2**steps) ** 0.5 / (1 - self._beta1**steps)
        weights.addcdiv_(first, square_root(second).add_(rule.tau), value=rate)

    def _adamw(self, server: ServerState, grad: Tensor, taken: int) -> None:
        """The step after `taken` steps of adamw."""
        assert server.layout is not None
        rule = self.settings
        kept = (keys.FIRST_MOMENT, keys.SECOND_MOMENT)
        moments = [server.tensors.setdefault(name, torch.zeros_like(grad)) for name in kept]
        vectors = [server.layout.view(flat) for flat in (server.weights, grad, *moments)]
        for is_spared in (False, True):
            names = [n for n in server.layout.names if any(fnmatchcase(n, p) for p in rule.no_decay) == is_spared]
            adamw_step(
                [[view[name] for name in names] for view in vectors],
                taken,
                lr=self.rate(taken, server.num_rounds),
                beta1=self._beta1,
                beta2=rule.beta2,
                eps=rule.eps,
                weight_decay=0.0 if is_spared else rule.weight_decay,
            )
