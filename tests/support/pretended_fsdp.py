"""Calls of torch's FSDP2 to a device beside those of the package: streams that wait, and collectives of a worker.

What is moved goes over gloo, from the numbers of pretended tensors, so the bits are those of ranks on the CPU. Memory
is neither freed nor pinned, and there is no autocast: torch lets nobody make these for such a device. With torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from pretended_device import NAME, Event, Module, Stream, _real, used
from pretended_nccl import install_nccl
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param
from torch.distributed.tensor import _op_schema

COLLECTIVES = ("all_reduce", "all_gather_single", "reduce_scatter_single")


class Waiting(Stream):
    """A stream that waits for others; all is done."""

    def __init__(self, device: torch.device | None = None, priority: int = 0) -> None:
        super().__init__(device)

    def wait_stream(self, other: Stream) -> None:
        used["stream awaited"] += 1

    def wait_event(self, event: Event) -> None:
        used["event awaited by a stream"] += 1

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


def install_fsdp() -> torch.device:
    """A pretended device for this rank alone, on which FSDP2 can share out a model; returns the device."""
    device, stream = install_nccl(), Waiting()
    module: Any = Module
    module.Stream, module.current_device = Waiting, lambda self: 0
    module.current_stream = lambda self, device=None: stream
    torch.accelerator.current_stream = lambda device=None: stream  # type: ignore[assignment,misc]
    torch_private: Any = _fsdp_init
    torch_private._move_states_to_device = _moved
    torch_private = _fsdp_param
    torch_private.alloc_storage = torch_private.free_storage = lambda tensor: None
    torch_private = _op_schema
    torch_private._rebuild_tensor_from_dtensor_meta = _shape
    tensors: Any = Tensor
    to = Tensor.to
    tensors.pin_memory = lambda self, device=None: self
    tensors.to = lambda self, *place, non_blocking=False, **how: to(self, *place, **how)  # which would pin memory
    for name in COLLECTIVES:
        setattr(dist, name, _over_gloo(getattr(dist, name)))
    return device


def _shape(spec: Any) -> Tensor:
    """A tensor of a DTensor's shape, by which torch finds the shapes of what operations make of it."""
    meta = spec.tensor_meta
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)


def _moved(parameters: list[nn.Parameter], buffers: list[Tensor], device: torch.device) -> None:
    """In place of `tensor.data = tensor.to(device)`, which torch refuses for tensors of such a device."""
    for tensor in [*parameters, *buffers]:
        if tensor.device.type != NAME:
            there = tensor.detach().to(device)
            is_trained = isinstance(tensor, nn.Parameter)
            torch.utils.swap_tensors(tensor, nn.Parameter(there, tensor.requires_grad) if is_trained else there)


def _over_gloo(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective of torch's that takes pretended tensors, all of one device, contiguous ones alone."""

    def moved(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        assert len({tensor.device for tensor in tensors}) == 1, "tensors of several devices in one collective"
        assert all(tensor.is_contiguous() for tensor in tensors)
        used[f"{collective.__name__} on {tensors[0].device.type}"] += 1
        return collective(*map(_real, args), **{name: _real(value) for name, value in kwargs.items()})

    return moved
