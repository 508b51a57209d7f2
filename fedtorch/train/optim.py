"""Client optimisers and schedules by name, and their state as plain tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core.moved import moved
from fedtorch.core.shown import shortened
from fedtorch.train.muon import MUON, Groups, MuonAndAdamW
from fedtorch.train.schedules import share_of_rate
from fedtorch.train.settings import ClientConfig

# Settings that live in the optimiser object itself; clients that differ only in lr share one optimiser.
_BUILT_IN = (
    "optimizer",
    "momentum",
    "muon_for",
    "muon_momentum",
    "weight_decay",
    "no_decay",
    "betas",
    "eps",
    "adafactor_eps",
    "clip_threshold",
    "decay_rate",
    "scale_parameter",
    "relative_step",
)


def _sgd(groups: Groups, hp: ClientConfig) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=hp.lr, momentum=hp.momentum, weight_decay=hp.weight_decay)


def _adam(groups: Groups, hp: ClientConfig) -> torch.optim.Optimizer:
    # fused is three times as fast as the default on CPU
    return torch.optim.Adam(groups, lr=hp.lr, betas=hp.betas, eps=hp.eps, weight_decay=hp.weight_decay, fused=True)


def _adamw(groups: Groups, hp: ClientConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=hp.lr, betas=hp.betas, eps=hp.eps, weight_decay=hp.weight_decay, fused=True)


def _adafactor(groups: Groups, hp: ClientConfig) -> torch.optim.Optimizer:
    # not torch.optim.Adafactor: it scales by the parameter's RMS and caps the rate at 1/sqrt(k). Here: see `schedules`
    from transformers.optimization import Adafactor

    return Adafactor(
        groups,
        lr=None if hp.relative_step else hp.lr,
        scale_parameter=hp.scale_parameter,
        relative_step=hp.relative_step,
        eps=hp.adafactor_eps,
        clip_threshold=hp.clip_threshold,
        decay_rate=hp.decay_rate,
        weight_decay=hp.weight_decay,
    )


def _muon(groups: Groups, hp: ClientConfig) -> torch.optim.Optimizer:
    return MuonAndAdamW(groups, hp)


OPTIMIZERS: dict[str, Callable[[Groups, ClientConfig], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "adafactor": _adafactor,
    "muon": _muon,
}


def make_optimizer(names: Sequence[str], parameters: Sequence[nn.Parameter], hp: ClientConfig) -> torch.optim.Optimizer:
    """The optimiser `hp.optimizer` over parameters; those whose names match `hp.no_decay` decay by 0."""
    chosen: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in zip(names, parameters, strict=True):
        kind = steps_by_muon(name, parameter.shape, hp), _matches(name, hp.no_decay)
        chosen.setdefault(kind, []).append(parameter)
    groups: Groups = [
        {"params": params, **({"weight_decay": 0.0} if spared else {}), **({MUON: 1} if of_muon else {})}
        for (of_muon, spared), params in sorted(chosen.items(), key=lambda group: group[0])
    ]
    return OPTIMIZERS[hp.optimizer](groups, hp)


def steps_by_muon(name: str, shape: Sequence[int], hp: ClientConfig) -> bool:
    """Is it one of the matrices that Muon steps?"""
    return hp.optimizer == "muon" and len(shape) == 2 and _matches(name, hp.muon_for)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Optimizers:
    """Optimisers over the same parameters, made when they are first asked for."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        change: Callable[[torch.optim.Optimizer], torch.optim.Optimizer] = lambda made: made,
    ) -> None:
        """change: makes of each what fits these parameters, which may be parts of some."""
        self._names, self._parameters, self._change = names, parameters, change
        self._made: dict[tuple[Any, ...], torch.optim.Optimizer] = {}

    def of(self, hp: ClientConfig) -> torch.optim.Optimizer:
        """The one for these settings, in the state that its last user left."""
        key = tuple(getattr(hp, name) for name in _BUILT_IN)
        if key not in self._made:
            self._made[key] = self._change(make_optimizer(self._names, self._parameters, hp))
        return self._made[key]


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


def renew(optimizer: torch.optim.Optimizer, wanted: torch.optim.Optimizer) -> None:
    """Make another optimiser of this kind over the same groups, with the settings of `wanted`."""
    for group, other in zip(optimizer.param_groups, wanted.param_groups, strict=True):
        group.update({key: value for key, value in other.items() if key != "params"})
    forget(optimizer)


def state_of(
    optimizer: torch.optim.Optimizer, names: Sequence[str], parameters: Sequence[nn.Parameter]
) -> tuple[dict[str, Tensor], dict[str, int | float]]:
    """Copies of the optimiser's state: tensors and numbers under `<parameter>/<key>`.

    A parameter whose state is all zero has none: whether `forget` left zeros there depends on who trained before.
    """
    kept = {name: optimizer.state.get(parameter, {}) for name, parameter in zip(names, parameters, strict=True)}
    entries = {(name, key): value for name, state in kept.items() for key, value in state.items()}
    held = {entry: value for entry, value in entries.items() if isinstance(value, Tensor)}
    numbers = {entry: value for entry, value in entries.items() if isinstance(value, int | float)}
    used = {name for (name, _), is_set in zip(held, _any(held.values()), strict=True) if is_set}
    used |= {name for (name, _), value in numbers.items() if value}
    held = {(name, key): value for (name, key), value in held.items() if name in used}
    copies = moved([*held.values()], torch.device("cpu"))
    tensors = {f"{name}/{key}": copy for (name, key), copy in zip(held, copies, strict=True)}
    return tensors, {f"{name}/{key}": value for (name, key), value in numbers.items() if name in used}


def _any(tensors: Iterable[Tensor]) -> list[bool]:
    """Has each a number other than 0? The host waits once for each device."""
    flags = [tensor.any() for tensor in tensors]
    found: dict[torch.device, list[Tensor]] = {}
    for flag in flags:
        found.setdefault(flag.device, []).append(flag)
    known = {device: iter(torch.stack(own).tolist()) for device, own in found.items()}
    return [next(known[flag.device]) for flag in flags]


def load_state(
    optimizer: torch.optim.Optimizer,
    names: Sequence[str],
    parameters: Sequence[nn.Parameter],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, int | float],
) -> None:
    """Put back what `state_of` gave; parameters without an entry start fresh. Copies the tensors."""
    forget(optimizer)
    places = dict(zip(names, parameters, strict=True))
    entries: dict[str, Any] = {**tensors, **numbers}
    # steps are counted on the CPU, as torch's optimisers begin to count them; moments follow the parameter
    by_device: dict[torch.device, list[str]] = {}
    for path, value in tensors.items():
        place = places[path.rsplit("/", 1)[0]].device if value.ndim else value.device
        by_device.setdefault(place, []).append(path)
    for device, paths in by_device.items():
        entries |= zip(paths, moved([tensors[path] for path in paths], device), strict=True)
    for path, value in entries.items():
        name, key = path.rsplit("/", 1)
        optimizer.state[places[name]][key] = value


_KEPT: dict[str, tuple[set[str], ...]] = {
    "sgd": ({"momentum_buffer"},),
    "adam": ({"step", "exp_avg", "exp_avg_sq"},),
    "adamw": ({"step", "exp_avg", "exp_avg_sq"},),
    "adafactor": ({"step", "RMS", "exp_avg_sq"}, {"step", "RMS", "exp_avg_sq_row", "exp_avg_sq_col"}),
    "muon": ({"momentum_buffer"}, {"step", "exp_avg", "exp_avg_sq"}),
}
"""What an optimiser keeps of a parameter, in one form or another."""


def misfit(
    optimizer: str, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, entries: Mapping[str, Any]
) -> str:
    """Say what is wrong with a state as `state_of` gives it, as a clause; empty if nothing is.

    shapes: of the trained parameters, by name. dtype: theirs. entries: tensors and numbers together.
    """
    kept: dict[str, set[str]] = {}
    for path, value in entries.items():
        name, _, key = path.rpartition("/")
        if name not in shapes:
            return f"has {shortened(path)}, which is of no parameter that is trained"
        kept.setdefault(name, set()).add(key)
        shape = shapes[name]
        wanted = {"exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": shape[:-2] + shape[-1:]}.get(key, shape)
        if key in ("step", "RMS"):
            is_scalar = not isinstance(value, Tensor) or (value.ndim == 0 and value.is_floating_point())
            if not is_scalar or not 0 <= float(value) < math.inf or (key == "step" and float(value) % 1):
                return f"has no number that an optimiser can have as {shortened(path)}"
        elif not isinstance(value, Tensor) or tuple(value.shape) != wanted or value.dtype != dtype:
            found = f"{value.dtype} of {tuple(value.shape)}" if isinstance(value, Tensor) else "a number"
            return f"has {found} as {shortened(path)}, where {dtype} of {wanted} belongs"
        elif key.startswith("exp_avg_sq") and (value < 0).any():
            return f"has negative numbers as {shortened(path)}, which is a mean of squares"
    for name, there in kept.items():
        if there not in _KEPT[optimizer]:
            return f"has {', '.join(sorted(there))} of {shortened(name)}, which is not what {optimizer} keeps"
    return ""


def warmup_of(hp: ClientConfig, steps: int) -> int:
    """Steps at the start of a schedule of `steps` in which the rate rises."""
    return hp.warmup_steps or math.ceil(round(hp.warmup_ratio * steps, 6))  # 0.07 · 100 is above 7


def make_schedule(
    optimizer: torch.optim.Optimizer, hp: ClientConfig, steps: int, taken: int = 0
) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning-rate schedule over `steps` optimiser steps up to `hp.lr`, of which `taken` are behind."""
    for group in optimizer.param_groups:
        # a schedule takes `initial_lr` where an earlier one has left it: the last client's rate
        group["lr"] = group["initial_lr"] = hp.lr
    rate = partial(share_of_rate, hp=hp, warmup=warmup_of(hp, steps), steps=max(1, steps))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate, taken - 1)
