"""Client optimisers and schedules by name, and their state as plain tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor, get_scheduler


class LocalTraining(Protocol):
    """A client's training settings as this layer reads them; `config.ClientConfig` explains each."""

    @property
    def optimizer(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def eps(self) -> float: ...
    @property
    def adafactor_eps(self) -> tuple[float, float]: ...
    @property
    def decay_rate(self) -> float: ...
    @property
    def scale_parameter(self) -> bool: ...
    @property
    def relative_step(self) -> bool: ...
    @property
    def clip_threshold(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def max_grad_norm(self) -> float | None: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def accumulation(self) -> int: ...
    @property
    def accumulation_rule(self) -> str: ...
    @property
    def epochs(self) -> int | None: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def optimizer_state(self) -> str: ...


def _sgd(parameters: list[nn.Parameter], hp: LocalTraining) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=hp.lr, momentum=hp.momentum, weight_decay=hp.weight_decay)


def _adam(parameters: list[nn.Parameter], hp: LocalTraining) -> torch.optim.Optimizer:
    # fused is three times as fast as the default on CPU
    return torch.optim.Adam(parameters, lr=hp.lr, betas=hp.betas, eps=hp.eps, weight_decay=hp.weight_decay, fused=True)


def _adamw(parameters: list[nn.Parameter], hp: LocalTraining) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=hp.lr, betas=hp.betas, eps=hp.eps, weight_decay=hp.weight_decay, fused=True)


def _adafactor(parameters: list[nn.Parameter], hp: LocalTraining) -> torch.optim.Optimizer:
    # not torch.optim.Adafactor: it scales by the parameter's RMS and caps the rate at 1/sqrt(k)
    return Adafactor(
        parameters,
        lr=None if hp.relative_step else hp.lr,
        scale_parameter=hp.scale_parameter,
        relative_step=hp.relative_step,
        eps=hp.adafactor_eps,
        clip_threshold=hp.clip_threshold,
        decay_rate=hp.decay_rate,
        weight_decay=hp.weight_decay,
    )


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], LocalTraining], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "adafactor": _adafactor,
}


def forget(optimizer: torch.optim.Optimizer) -> None:
    """Bring an optimiser back to the state of a fresh one, without giving up its memory.

    Zeroed buffers equal missing ones for the optimisers above (SGD's first buffer is 0.9·0 + g = g).
    """
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                value.zero_()
            elif isinstance(value, int | float):
                state[key] = type(value)(0)


def state_of(optimizer: torch.optim.Optimizer, names: list[str]) -> tuple[dict[str, Tensor], dict[str, int | float]]:
    """Copies of the optimiser's state: tensors and numbers under `<parameter>/<key>`."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, int | float] = {}
    for name, parameter in zip(names, _parameters(optimizer), strict=True):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value.detach().cpu().clone()
            elif isinstance(value, int | float):
                numbers[f"{name}/{key}"] = value
    return tensors, numbers


def load_state(
    optimizer: torch.optim.Optimizer,
    names: list[str],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, int | float],
) -> None:
    """Put back what `state_of` gave; parameters without an entry start fresh. Copies the tensors."""
    forget(optimizer)
    places = dict(zip(names, _parameters(optimizer), strict=True))
    entries: list[tuple[str, Any]] = [*tensors.items(), *numbers.items()]
    for path, value in entries:
        name, key = path.rsplit("/", 1)
        parameter = places[name]
        if isinstance(value, Tensor):
            # AdamW's step stays on the CPU unless fused; moments follow the parameter
            device = parameter.device if value.ndim or parameter.is_cuda else value.device
            value = value.to(device, copy=True)
        optimizer.state[parameter][key] = value


def make_schedule(
    optimizer: torch.optim.Optimizer, hp: LocalTraining, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning-rate schedule over `steps` optimiser steps, starting from `hp.lr`."""
    for group in optimizer.param_groups:
        # a schedule takes `initial_lr` where an earlier one has left it: the last client's rate
        group["lr"] = group["initial_lr"] = hp.lr
    # transformers' `constant` ignores the warm-up
    name = "constant_with_warmup" if hp.schedule == "constant" and hp.warmup_steps else hp.schedule
    return get_scheduler(name, optimizer, num_warmup_steps=hp.warmup_steps, num_training_steps=max(1, steps))


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
