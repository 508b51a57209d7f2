"""Passes over whole parameters whose gradient DeepSpeed gets in one piece.

DeepSpeed follows a backward pass parameter by parameter: each must come once, in the same order on every rank, and in
stage 3 every rank must call the same submodules. A loss that runs the model with other weights, that goes back several
times, or whose calls depend on the rows of a micro-batch cannot keep to that. It says so with `whole_passes`; then it
gets a model whose parameters are whole and unknown to DeepSpeed, and what comes out as their gradient is handed over,
every parameter in the model's order.

Costs a whole gradient in the parameters' precision for as long as it takes to hand it over, which stage 1 has anyway,
and in stage 3 the whole parameters for one pass at a time.

Checked with deepspeed 0.19.8.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

LossFunction = Callable[[nn.Module, Any], tuple[Tensor, "Tensor | int"]]
Connect = Callable[[nn.Module, Any], None]
"""connects a module with the other ranks of a worker, so that all compute a pass together; None for the worker parts"""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def needs_whole_passes(loss_fn: Any) -> bool:
    """Does a loss ask for whole passes? By `whole_passes` of the object whose method it is."""
    if isinstance(loss_fn, partial):
        return any(map(needs_whole_passes, loss_fn.args))
    return bool(getattr(getattr(loss_fn, "__self__", None), "whole_passes", False))


class WholePass:
    """A loss as `Objective` takes it: its mean, with a graph that holds the gradient."""

    def __init__(
        self,
        loss_fn: LossFunction,
        *,
        scale: float = 1.0,
        is_empty: bool = False,
        connect: Callable[[Any], None] | None = None,
        worker: Any = None,
    ) -> None:
        """scale: what the loss is multiplied by while its gradient is taken, and the gradient divided by later (fp16).

        is_empty: only another rank has a micro-batch; the gradient is zero, and nothing is computed.
        connect: the module's `Connect`, if the ranks of `worker` compute the pass together, each a part of the
        gradient; connected for the pass alone, so that every rank evaluates the whole model by itself.
        """
        self.loss_fn, self.scale, self.is_empty = loss_fn, scale, is_empty
        self.connect, self.worker = connect, worker

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        """The mean loss; the parameters, which are whole, stay out of its computation."""
        own = dict(module.named_parameters())
        trained = {name: parameter for name, parameter in own.items() if parameter.requires_grad}
        twins = {name: parameter.detach().requires_grad_(name in trained) for name, parameter in own.items()}
        if self.is_empty:
            loss = torch.zeros((), device=next(iter(own.values())).device)
        else:
            swapped = {f"module.{name}": twin for name, twin in twins.items()}
            with _no_hooks(module), self._connected():
                loss = functional_call(_Call(module, self.loss_fn, self.scale), swapped, (batch,))
        handed: Tensor = _HandOver.apply(loss, self.scale, [twins[name] for name in trained], *trained.values())
        return handed

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self.connect is None:
            yield
            return
        self.connect(self.worker)
        try:
            yield
        finally:
            self.connect(None)


class _HandOver(torch.autograd.Function):
    """A loss of parameters whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, scale: float, twins: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.scale, ctx.twins = scale, twins
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        factor = upstream[0] / ctx.scale
        twins, ctx.twins = ctx.twins, None
        # zeros that nobody has written to take no memory
        return (None, None, None, *(torch.zeros_like(t) if t.grad is None else t.grad.mul_(factor) for t in twins))


class _Call(nn.Module):
    """A loss of a module, and the way back, as a module, so that `functional_call` can put other parameters into it.

    Back in there too, for activations may be computed again on the way.
    """

    def __init__(self, module: nn.Module, loss_fn: LossFunction, scale: float) -> None:
        super().__init__()
        self.module, self.loss_fn, self.scale = module, loss_fn, scale

    def forward(self, batch: Any) -> Tensor:
        loss_sum, count = self.loss_fn(self.module, batch)
        loss: Tensor = loss_sum.float() / count
        if torch.is_grad_enabled() and loss.requires_grad:
            (loss * self.scale).backward()
        return loss.detach()


@contextmanager
def _no_hooks(module: nn.Module) -> Iterator[None]:
    """No hook of the module's parts runs in here: stage 3's would look for what it knows of every parameter."""
    held = [(part, name, getattr(part, name)) for part in module.modules() for name in _HOOKS]
    for part, name, _ in held:
        setattr(part, name, OrderedDict())
    try:
        yield
    finally:
        for part, name, hooks in held:
            setattr(part, name, hooks)
