"""Kinds of GPUs that torch knows: what they are called, and what torch's functions for each of them lack.

Asked by `core.devices` alone. NVIDIA's and AMD's have everything. Intel's have all but NCCL, so payloads go through
the host's memory. Apple's have one GPU, no streams, and no numbers of 64 bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Kind:
    """A kind of GPU."""

    name: str
    """torch's, of the device's type"""
    hides: str
    """variable of the environment that hides GPUs from a process; empty: there is none"""
    drivers: tuple[str, ...]
    """files of which one is there when a driver is loaded; none: nothing tells"""

    @property
    def module(self) -> Any:
        """The functions that torch has for it."""
        return getattr(torch, self.name)

    def count(self) -> int:
        """How many of them torch finds, without those that are hidden or whose driver is too old."""
        return int(self.module.device_count()) if self.module.is_available() else 0

    def is_hidden(self) -> bool:
        """Has somebody hidden all of them?"""
        return bool(self.hides) and os.environ.get(self.hides) == ""

    def has_driver(self) -> bool:
        """Is there a driver, whether torch can use it or not?"""
        return any(Path(path).exists() for path in self.drivers)


CUDA = Kind("cuda", "CUDA_VISIBLE_DEVICES", ("/dev/nvidiactl", "/dev/kfd"))
"""NVIDIA's, and AMD's in torch's build for them."""
XPU = Kind("xpu", "ZE_AFFINITY_MASK", ())
"""Intel's."""
MPS = Kind("mps", "", ())
"""Apple's."""
KINDS = (CUDA, XPU, MPS)


def found() -> Kind:
    """The first kind of which torch finds a GPU; CUDA where it finds none."""
    return next((kind for kind in KINDS if kind.count()), CUDA)


def named(name: str) -> Kind:
    """The kind that is called so; the one that is found if none is."""
    return next((kind for kind in KINDS if kind.name == name), None) or found()


# Functions that not every kind's module has.


def uuid(device: torch.device) -> str:
    """A name of the GPU that is the same for all processes of the machine; empty if its kind does not tell one."""
    describe = getattr(torch.get_device_module(device), "get_device_properties", None)
    return str(getattr(describe(device), "uuid", "")) if describe is not None else ""


def stream(device: torch.device) -> Any:
    """A stream of its own; None where the kind has none but the present one."""
    kind = getattr(torch.get_device_module(device), "Stream", None)
    return kind(device) if kind is not None else None


def record(event: Any, device: torch.device) -> None:
    """The event comes to pass when all that was begun until now is done."""
    current = getattr(torch.get_device_module(device), "current_stream", None)
    event.record(*([current(device)] if current is not None else []))


def seed(number: int, device: torch.device) -> None:
    """Seed the generators of all GPUs of the kind."""
    module = torch.get_device_module(device)
    (module.manual_seed_all if hasattr(module, "manual_seed_all") else module.manual_seed)(number)


def generators(device: torch.device) -> tuple[torch.device, ...]:
    """Arguments of the kind's `get_rng_state`: the device, or nothing where there is one only."""
    return () if device.type == MPS.name else (device,)


def kept() -> Callable[[], None]:
    """Keep the present GPU and all generators of GPUs: a call puts them back, if any GPU was used before."""
    kind = found()
    module = kind.module
    if not getattr(module, "is_initialized", module.is_available)():
        return lambda: None
    if kind is MPS:  # one GPU, one generator
        return partial(module.set_rng_state, module.get_rng_state())
    device, states = module.current_device(), module.get_rng_state_all()

    def put_back() -> None:
        module.set_rng_state_all(states)
        module.set_device(device)

    return put_back


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Memory that nobody uses, and all of it, in bytes; (0, 0) where the kind does not tell."""
    module = torch.get_device_module(device)
    if device.type == MPS.name:
        total = int(module.recommended_max_memory())
        return total - int(module.driver_allocated_memory()), total
    if not hasattr(module, "mem_get_info"):
        return 0, 0
    free, total = module.mem_get_info(device)
    return int(free), int(total)
