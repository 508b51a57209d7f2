"""SCAFFOLD (Karimireddy et al. 2020): control variates correct each client's drift."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedtorch.algorithms.base import on_device
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits, trains_as
from fedtorch.algorithms.travels import Travels
from fedtorch.algorithms.weighting import alone
from fedtorch.core.errors import ConfigError
from fedtorch.core.fused_add import add_multiple
from fedtorch.core.overrides import overrides
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Local steps y ← y − lr·(g_i(y) − c_i + c); c_i lives with the client, c with the server, both start at 0.

    Sent: x − y_i and c_i − c_i⁺, where x are the received weights. Server, with unweighted means over the cohort C
    of N clients: x ← x + eta_g·mean(y_i − x); c ← c + (|C|/N)·mean(c_i⁺ − c_i). eta_g is `server.lr` with
    `server.optimizer: sgd`, or 1 with `none`.
    """

    weights: Literal["equal"] = "equal"
    """the paper's means are unweighted"""
    option: Literal["I", "II"] = "II"
    """II: c_i⁺ = c_i − c + (x − y)/(S·lr). I: c_i⁺ = gradient at x over all the client's data (one more pass)"""
    force: bool = False
    """allow other client optimisers than plain SGD, for which S·lr is not the right scale of option II"""

    @property
    def travels(self) -> Travels:
        """The weights and c."""
        return Travels(("weights", "control"))

    @property
    def limits(self) -> Limits:
        """With option I gradients are taken outside a step: DeepSpeed has none, and nobody takes fp16's scale out."""
        steps = not overrides(type(self), "server_update", Scaffold)
        usual = replace(super().limits, steps_with_optimizer=steps, steps_each_number=steps)
        if self.option == "II":
            return replace(usual, why_not_record="" if trains_as(type(self), Scaffold) else None)
        why_not = "with option I takes a gradient over all its data, which belongs to no step"
        return replace(usual, engines=("torch",), why_not_deepspeed=why_not, precisions=("fp32", "bf16"))

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuses what the paper's formula does not cover, unless `force`."""
        plain = hp.optimizer == "sgd" and not hp.momentum and not hp.weight_decay and hp.schedule == "constant"
        plain &= hp.max_grad_norm is None and not hp.warmup_steps and not hp.warmup_ratio
        if not plain and not self.force:
            raise ConfigError(
                "algorithm.name is `scaffold`, which needs plain SGD on clients: set client.optimizer: sgd, "
                "client.schedule: constant, and no momentum, weight_decay, warm-up or max_grad_norm; "
                "or algorithm.force: true if you know what the control variates then mean"
            )

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """c_i, also in rounds in which the client is not sampled; c, which is exchanged, has the same name."""
        return Kept({"control": (layout.size,)}, client=("control",), by_clients=True)

    @on_device
    def client_update(self, job: ClientJob) -> Report:
        """Corrected local training; the new c_i goes into the client's state."""
        received, control = job.received["weights"], job.received["control"]
        own = _own_control(job, control)
        fresh = _full_gradient(job, received) if self.option == "I" else None
        curve = job.train(received, before_step=self.correction(job))
        sent = job.send_difference(received)
        if fresh is None:
            # no step: nothing was measured, c_i stays
            scale = 1.0 / (curve.taken * job.hp.lr) if curve.taken else 0.0
            fresh = own - control + sent * scale if curve.taken else own
        job.send_difference(own, fresh, name="control")
        job.state.tensors["control"] = fresh.cpu()
        return self.report(job, curve)

    @on_device
    def correction(self, job: ClientJob) -> GradientHook | None:
        """Adds c − c_i to the gradient."""
        control = job.received["control"]
        shifts = job.engine.shared_views(job.engine.placed(control - _own_control(job, control)))

        @torch.no_grad()
        def shift_gradients(engine: Engine) -> None:
            torch._foreach_add_(engine.shared_gradients(), shifts)

        return shift_gradients

    def own_weight(self, report: Report) -> float | None:
        """Every draw counts the same: the mean is unweighted, under size-proportional sampling over the draws."""
        return alone("equal", report)

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """x by the server optimiser; c by |C|/N of the mean change of the clients' c_i."""
        weights_grad, control_grad = grad.chunk(2)
        add_multiple(server.tensors["control"], control_grad, -len(server.accepted) / server.num_clients)
        server.optimizer.step(server, weights_grad)


def _own_control(job: ClientJob, like: Tensor) -> Tensor:
    """The client's c_i where `like` lies; zeros before its first round."""
    own = job.state.tensors.get("control")
    return torch.zeros_like(like) if own is None else own.to(like.device)


def _full_gradient(job: ClientJob, weights: Tensor) -> Tensor:
    """Mean gradient over all the client's examples at `weights`, where these lie; dropout off, flat as they are."""
    engine, size = job.engine, job.hp.batch_size
    engine.start(weights, job.private, job.hp, steps=1, seed=job.seed("full gradient"))
    engine.module.eval()
    for start in range(0, len(job.examples), size):
        part = [job.examples[i] for i in range(start, min(start + size, len(job.examples)))]
        engine.backward(partial(_part_of_mean, job, len(part)), job.task.collate(part, True))
        job.on_step(0)
    engine.collect_gradients()
    flat = torch.zeros_like(weights)
    for view, gradient in zip(engine.shared_views(flat), engine.shared_gradients(), strict=True):
        view.copy_(gradient)
    return flat


def _part_of_mean(job: ClientJob, size: int, module: nn.Module, batch: Any) -> tuple[Tensor, int]:
    """The loss of a batch of `size` examples, as its part in the mean over all the client's."""
    total, count = job.task.loss(module, batch)
    return total / count * size / len(job.examples), 1
