"""Looks whether torch's CUDA build has what the package asks of it; no GPU is needed. `make gpu-api` runs it there.

Prints what is missing, or that nothing is. Exit code: 0, or 1 where something is missing.
"""

from __future__ import annotations

import inspect
import mmap
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

CALLS: dict[str, tuple[str, ...]] = {
    # core/devices.py
    "torch.cuda.device_count": (),
    "torch.cuda.is_available": (),
    "torch.cuda.is_initialized": (),
    "torch.cuda.set_device": ("device",),
    "torch.cuda.current_device": (),
    "torch.cuda.current_stream": ("device",),
    "torch.cuda.stream": ("stream",),
    "torch.cuda.manual_seed_all": ("seed",),
    "torch.cuda.get_rng_state": ("device",),
    "torch.cuda.set_rng_state": ("new_state", "device"),
    "torch.cuda.get_rng_state_all": (),
    "torch.cuda.set_rng_state_all": ("new_states",),
    "torch.cuda.empty_cache": (),
    "torch.cuda.reset_peak_memory_stats": ("device",),
    "torch.cuda.max_memory_allocated": ("device",),
    "torch.cuda.max_memory_reserved": ("device",),
    "torch.cuda.utilization": ("device",),
    "torch.cuda.get_device_properties": ("device",),
    "torch.cuda.get_device_capability": ("device",),
    "torch.cuda.get_device_name": ("device",),
    "torch.cuda.is_bf16_supported": ("including_emulation",),
    "torch.cuda.get_arch_list": (),
    "torch.cuda.mem_get_info": ("device",),
    "torch.cuda.nccl.version": (),
    "torch.cuda.Event.record": ("stream",),
    "torch.cuda.Event.synchronize": (),
    "torch.cuda.Event.query": (),
    "torch.cuda.Stream.wait_event": ("event",),
    "torch.cuda.Stream.synchronize": (),
    "torch.get_device_module": ("device",),
    "torch.use_deterministic_algorithms": ("mode",),
    "torch.nn.attention.sdpa_kernel": ("backends",),
    "torch.backends.cudnn.version": (),
}
"""Function -> arguments that are given to it."""
MEMBERS = (
    "torch.distributed.ProcessGroupNCCL.Options",
    "torch.distributed.ProcessGroupNCCL.eager_connect_single_device",
    "torch.distributed.ProcessGroupNCCL.abort",
    "torch.distributed.ProcessGroupNCCL.broadcast",
    "torch.distributed.ProcessGroupNCCL.allreduce",
    "torch.distributed.ProcessGroupNCCL.allgather",
    "torch.distributed.ProcessGroupNCCL.alltoall_base",
    "torch.distributed.ProcessGroupNCCL.reduce",
    "torch.distributed.ProcessGroupNCCL.send",
    "torch.distributed.ProcessGroupNCCL.recv",
    "torch.distributed.AllreduceOptions",
    "torch.distributed.AllToAllOptions",
    "torch.distributed.BroadcastOptions",
    "torch.distributed.ReduceOptions",
)
VARIABLES = ("TORCH_NCCL_BLOCKING_WAIT", "CUBLAS_WORKSPACE_CONFIG")
"""Variables of the environment that a library of the build reads."""


def found(name: str) -> object:
    """Return what stands under a dotted name; an AttributeError where nothing does."""
    value: object = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def libraries() -> Iterator[Path]:
    """The libraries of torch, and those of NVIDIA's packages beside it."""
    folder = Path(torch.__file__).parent
    yield from folder.glob("lib/libtorch_*.so")
    yield from folder.parent.glob("nvidia/**/libcublas*.so*")


def is_named(word: str) -> bool:
    """Does one of the libraries contain the word?"""
    for path in libraries():
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(word.encode()) >= 0:
                return True
    return False


def problems() -> Iterator[str]:
    """Name what is missing, or otherwise than the package takes it to be."""
    if torch.version.cuda is None:
        yield f"torch {torch.__version__} is not built for CUDA"
        return
    for name, given in CALLS.items():
        try:
            function = found(name)
        except AttributeError:
            yield f"{name} is not there"
            continue
        assert isinstance(function, Callable)  # type: ignore[arg-type]
        try:
            taken = inspect.signature(function).parameters  # type: ignore[arg-type]
        except ValueError:  # of a function in C
            continue
        if missing := [argument for argument in given if argument not in taken]:
            yield f"{name} has no argument {missing[0]}; it has {', '.join(taken)}"
    for name in MEMBERS:
        try:
            found(name)
        except AttributeError:
            yield f"{name} is not there"
    if not dist.is_nccl_available():
        yield "the build has no NCCL"
    elif not hasattr(dist.ProcessGroupNCCL.Options(), "_timeout"):
        yield "ProcessGroupNCCL.Options has no _timeout"
    if not issubclass(getattr(torch, "AcceleratorError", int), RuntimeError):
        yield "torch.AcceleratorError is no RuntimeError"
    yield from (f"no library reads {word}" for word in VARIABLES if not is_named(word))


def main() -> int:
    """Print the outcome."""
    missing = list(problems())
    for problem in missing:
        print(problem)
    about = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {len(CALLS) + len(MEMBERS)} names"
    print(f"{about}: {len(missing)} missing" if missing else f"{about}: all that is used is there")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
