"""The engine that a config asks for, on the device of this rank."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedtorch.config.schema import Config
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.core.shapes import without_values
from fedtorch.core.weights import Partition
from fedtorch.setup.rules import check_module
from fedtorch.tasks.base import Task
from fedtorch.train.activations import compute_activations_again
from fedtorch.train.attention import use_attention
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.model_parallel import ParameterOwners
from fedtorch.train.settings import ClientConfig, EngineConfig

Values = Literal["own", "sent", "none"]
"""Values that a model is built with: all of them; none until the server sends its weights, where ranks share out a
model; or none at all, as it is only counted."""

log = logging.getLogger(__name__)
_MAKES = frozenset(f"aten::{name}" for name in ("empty", "zeros", "ones", "full", "rand", "randn"))


def make_engine(
    config: Config,
    make_module: Callable[[], nn.Module],
    device: torch.device,
    *,
    hp: ClientConfig,
    ranks: int,
    values: Values = "own",
) -> Engine:
    """The engine of one rank. ranks: of its worker; 0: it belongs to none. A server that only serves splits nothing.

    values: see `Values`; weights have their own all the same where a model needs some to be built.

    Raises:
        ConfigError: a pattern that matches nothing, or a model that the engine, or this machine, cannot take.
    """
    engine = config.engine
    is_plain = engine.kind == "torch" or not ranks
    is_plain |= engine.kind == "fsdp" and ranks == 1 and not engine.offload_parameters  # there is nothing to split
    if values == "sent" and not is_shared_out(engine, ranks):
        values = "own"
    make_module = partial(_made, make_module, values)
    module = make_module()
    partition = Partition(config.partition.private, config.partition.frozen)
    check_module(config, module)
    if values != "none" and (is_plain or not engine.splits_parameters):
        check_room(module, device)
    use_attention(module, engine.attention, device)
    try:
        if is_plain:
            return _plain(engine, module, partition, device, ranks=ranks)
        if engine.kind == "fsdp":
            # not at every start: it needs transformers' optimisers and torch's FSDP
            from fedtorch.train.fsdp import FsdpEngine

            return FsdpEngine(module, partition, device, settings=engine)
        again = partial(_with_attention, make_module, engine.attention, device)
        return DeepSpeedEngine(module, partition, device, settings=engine, hp=hp, make_module=again)
    except ValueError as error:  # a pattern that matches nothing
        raise ConfigError(str(error)) from error


def _plain(
    settings: EngineConfig, module: nn.Module, partition: Partition, device: torch.device, *, ranks: int
) -> Engine:
    # beside workers that split, a server that only serves computes nothing
    precision = settings.precision if settings.kind == "torch" or ranks else "fp32"
    if settings.activation_checkpointing and ranks:
        compute_activations_again(module)
    return Engine(module, partition, device, precision=precision, scale_power=settings.initial_scale_power)


def is_shared_out(settings: EngineConfig, ranks: int) -> bool:
    """Do the ranks of a worker of so many split a model, so that none of them needs it whole?"""
    return ranks > 1 and (settings.kind == "fsdp" or (settings.kind == "deepspeed" and settings.stage > 0))


def _made(make_module: Callable[[], nn.Module], values: Values) -> nn.Module:
    """The module, with values of its own unless it can be built without them."""
    try:
        if values != "own":
            with without_values():
                module = make_module()
            if _can_wait(module, is_sent=values == "sent"):
                return module
    except Exception as error:  # whatever a model raises that looks at numbers; it is built with them, or fails again
        log.debug("the model is built with its numbers (%s)", type(error).__name__)
    with WithinMemory():
        return make_module()


def _can_wait(module: nn.Module, *, is_sent: bool) -> bool:
    """Will it have all values? Nobody sends buffers and what is not trained. is_sent: the rest is sent."""
    fixed = [*module.buffers(), *(each for each in module.parameters() if is_sent and not each.requires_grad)]
    return not any(each.is_meta for each in fixed)


def _with_attention(make_module: Callable[[], nn.Module], choice: str, device: torch.device) -> nn.Module:
    use_attention(module := make_module(), choice, device)
    return module


def check_room(module: nn.Module, device: torch.device) -> None:
    """Refuse a GPU whose free memory does not hold even the weights: others use it, or the model is too large.

    Raises:
        ConfigError: the same, with what is free.
    """
    free, total = devices.free_bytes(device)
    need = sum(parameter.nbytes for parameter in module.parameters())
    if total and need > free:
        gib = [f"{size / 2**30:.1f}" for size in (free, total, need)]
        raise ConfigError(
            f"GPU {device.index or 0} has {gib[0]} of {gib[1]} GiB free, and the model's weights alone need {gib[2]}: "
            "wait for the programs that use it, choose another one with CUDA_VISIBLE_DEVICES, use a smaller model or "
            "overlays/zero3, or set system.device to cpu"
        )


def divide(engine: Engine, config: Config, task: Task, sizes: Collection[int], own: int) -> None:
    """Note which rank of a worker computes which part of the model; one that splits it divides the work by itself.

    sizes: of all workers, so that every rank refuses what one of them cannot do; own: of this rank's worker.

    Raises:
        ConfigError: the task's model, or what is private of it, cannot be divided among so many ranks.
    """
    if config.engine.kind != "torch":
        return
    for size in sorted(set(sizes) - {1}):
        owners = task.parameter_owners(engine.module, size)
        try:
            divided = ParameterOwners.of(owners, engine.private.names)
        except ValueError as error:
            raise ConfigError(f"system.ranks_per_worker is {size} but {error}") from error
        if size == own:
            engine.owners = divided
        if divided is None:
            log.warning(
                "system.ranks_per_worker is %d, but nothing divides a client's work: all ranks of a worker do the "
                "same; set it to 1",
                size,
            )


def share_engine(one: Config, other: Config) -> bool:
    """May two runs train in the same engine, one after the other?"""
    same = (one.task, one.partition, one.run.seed, one.engine) == (
        other.task,
        other.partition,
        other.run.seed,
        other.engine,
    )
    is_same_optimizer = (one.client.optimizer, one.client.no_decay) == (other.client.optimizer, other.client.no_decay)
    return same and (one.engine.kind != "deepspeed" or is_same_optimizer)


class WithinMemory(TorchDispatchMode):
    """Inside the block tensors are made until together they are larger than all memory of this machine.

    A model that is too large is refused at its first tensor then, not by the system's killer. Freed ones count too, so
    the limit is twice that memory: it is for slips of the hand in widths and layers.

    Raises:
        ConfigError: they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit_bytes = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func.name().partition(".")[0] in _MAKES and str(options.get("device")) != "meta":
            dtype = options.get("dtype") or torch.get_default_dtype()
            self.bytes += math.prod(args[0]) * dtype.itemsize
            if self.bytes > self.limit_bytes:
                raise ConfigError(
                    f"the model that `task` describes does not fit into this machine: with a tensor of {list(args[0])} "
                    f"it has come to {self.bytes / 2**30:.0f} GiB; lower its widths, layers or positions"
                )
        return func(*args, **options)
