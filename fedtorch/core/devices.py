"""GPUs: how many there are, streams and events, random numbers, memory that they read. No other file asks their kind.

A device that is not the CPU is a GPU here, through the module of torch that has its functions (`torch.cuda`);
`core.kinds` has what those of other kinds lack.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedtorch.core import kinds
from fedtorch.core.errors import ConfigError, DeviceError
from fedtorch.core.extras import fetch_nothing

fetch_nothing()  # all that computes imports this file, and before it imports libraries that could

log = logging.getLogger(__name__)

CHOICES = ("auto", "cpu", *(kind.name for kind in kinds.KINDS))
"""Choices of a device, as `own` takes them."""
CPU = torch.device("cpu")
WITH_NCCL = kinds.CUDA.name
"""The kind of GPUs between which NCCL carries what they have."""
BACKENDS = f"cpu:gloo,{WITH_NCCL}:nccl"
"""Of a default group of ranks with a GPU each, as torch names them."""
_FAULT: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)  # torch 2.8 and later
_WORDS = "CUDA error"
_said: set[str] = set()  # warnings of this process


def is_gpu(device: torch.device) -> bool:
    """Has the device memory of its own?"""
    return device.type != "cpu"


def count(choice: str = "auto") -> int:
    """GPUs that torch finds; 0 also where CUDA_VISIBLE_DEVICES hides them or the driver is too old."""
    return kinds.named(choice).count()


def names() -> list[str]:
    """GPUs of this process as CUDA_VISIBLE_DEVICES names them; nothing is begun on them, so it may fork afterwards."""
    kind = kinds.found()
    seen = os.environ.get(kind.hides) if kind.hides else None
    if seen is not None:
        return seen.split(",") if seen else []
    return [str(number) for number in range(kind.module.device_count())]


def has_driver() -> bool:
    """Is there a GPU's driver, whether torch can use it or not?"""
    return any(kind.has_driver() for kind in kinds.KINDS)


def own(choice: str, *, server_serves: bool = False, key: str = "system.device") -> torch.device:
    """The device of this rank, which becomes the present one: GPU LOCAL_RANK modulo their number, or the CPU.

    choice: one of `CHOICES`; `auto` is the kind of which torch finds a GPU. server_serves: the server computes nothing;
    where its machine has more ranks than GPUs it takes the CPU then, the others all GPUs. key: where the choice stands.

    Raises:
        ConfigError: it is to be a GPU, and torch finds none, or has no kernels for it; or this machine of several has
            one that torch cannot use.
    """
    if choice == "cpu" or (choice == "auto" and not count()):
        if choice == "auto" and is_wasted():
            _say_wasted(f"torch finds no GPU ({why_none()})")
        return CPU
    if not count(choice):
        why = f"no GPU ({why_none()})" if not count() else f"GPUs of kind {kinds.found().name} alone"
        raise ConfigError(f"{key} is {choice} but torch finds {why}; set it to auto or cpu")
    place = int(os.environ.get("LOCAL_RANK", 0)) - int(spares_server(server_serves))
    if place < 0:
        return CPU
    device = torch.device(kinds.named(choice).name, place % count(choice))
    if why := why_no_kernels(device):
        if choice != "auto":
            raise ConfigError(f"{key} is {choice} but {why}; set it to auto or cpu, or install such a build")
        _say_wasted(why)
        return CPU
    make_present(device)
    return device


def make_present(device: torch.device) -> None:
    """Let libraries that name no device mean this one, in the thread that calls it."""
    if device.type not in (CPU.type, kinds.MPS.name):  # Apple's is the only one
        _module(device).set_device(device)


def spares_server(server_serves: bool) -> bool:
    """Is this the server's machine, with more ranks than GPUs, of which a server that only serves takes none?"""
    rank, local = (int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK"))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1)))
    return server_serves and rank == local and ranks > count() > 0


def is_wasted() -> bool:
    """Is there a GPU's driver, though torch finds no GPU, and nobody has hidden it?"""
    return not count() and has_driver() and not kinds.CUDA.is_hidden()


def why_no_kernels(device: torch.device) -> str:
    """Why torch's build cannot compute on a GPU of this kind; empty: it can, or nothing is known of it."""
    if torch.version.cuda is None or device.type != kinds.CUDA.name:
        return ""
    own, built = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    for arch in built:
        kind, _, digits = arch.partition("_")
        number = int("".join(filter(str.isdigit, digits)))
        other = divmod(number, 10)
        # binaries run on GPUs of their generation from their own number on, intermediate code on all later ones
        if other <= own and (kind == "compute" or other[0] == own[0]):
            return ""
    name = torch.cuda.get_device_name(device)
    shown = f"{name} is of kind sm_{own[0]}{own[1]}, for which torch {torch.__version__} has no kernels"
    return f"{shown} (it has {', '.join(built)})" if built else ""


def has_float64(device: torch.device) -> bool:
    """Can the device compute in float64, in which sums and norms are exact? Not every kind can."""
    try:
        return bool(torch.zeros(1, dtype=torch.float64, device=device).add_(1.0).item() == 1.0)
    except (TypeError, RuntimeError):
        return False


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Memory of a GPU that nobody uses, and all of it, in bytes; (0, 0) for the CPU."""
    return kinds.free_bytes(device) if is_gpu(device) else (0, 0)


def _say_wasted(told: str) -> None:
    """Warn once of a GPU that torch cannot use; where other machines may have one in use, refuse the job."""
    here, everywhere = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if here < everywhere:
        raise ConfigError(
            f"system.device is auto but on {platform.node()} {told}, so that all ranks would wait for its CPU; mend "
            "that, or set system.device to cpu"
        )
    if told not in _said:
        _said.add(told)
        log.warning("system.device is auto and %s; this rank computes on the CPU", told)


def why_none() -> str:
    """Say why torch finds no GPU."""
    build = torch.version.cuda or torch.version.hip or torch.version.xpu
    if build is None:
        return f"torch {torch.__version__} is built for the CPU alone"
    if kinds.CUDA.is_hidden():
        return f"{kinds.CUDA.hides} is empty"
    if has_driver():
        return f"there is a driver, but torch {torch.__version__}, built for {build}, cannot use it: it may be too old"
    return "no driver of a GPU is loaded"


def kind() -> torch.device:
    """A GPU, or the CPU where torch finds none; nothing is begun on it."""
    return torch.device(kinds.found().name) if count() else CPU


def present() -> torch.device:
    """The GPU that libraries mean which name none."""
    kind = kinds.found()
    return torch.device(kind.name, kind.module.current_device() if kind is not kinds.MPS else 0)


def identity(device: torch.device) -> str:
    """A name of the GPU that is the same for all processes of the machine, whichever GPUs they see; empty: unknown."""
    return kinds.uuid(device)


# Streams and events. On the CPU there are none: everything is done when a call returns.


def new_stream(device: torch.device) -> Any:
    """A stream of a GPU; None on the CPU, and where a GPU has but one."""
    return kinds.stream(device) if is_gpu(device) else None


def on_stream(device: torch.device, stream: Any) -> AbstractContextManager[object]:
    """Work is begun on the stream in here."""
    return nullcontext() if stream is None else _module(device).stream(stream)


def noted(device: torch.device, event: Any = None) -> Any:
    """An event that has come to pass when the GPU has done what was begun until now; `event` again if it is given."""
    event = event or _module(device).Event()
    kinds.record(event, device)
    return event


# Random numbers.


def seed(number: int, device: torch.device) -> None:
    """Seed what the device's own generator draws; on the CPU nothing happens."""
    if is_gpu(device):
        kinds.seed(number, device)


def generator_state(device: torch.device) -> Tensor | None:
    """The state of the device's own generator, uint8 on the CPU; None: it has none."""
    return _module(device).get_rng_state(*kinds.generators(device)) if is_gpu(device) else None


def set_generator_state(state: Tensor, device: torch.device) -> None:
    """Put back what `generator_state` gave."""
    _module(device).set_rng_state(state, *kinds.generators(device))


@contextmanager
def same_numbers_again(device: torch.device) -> Iterator[None]:
    """Drawn numbers, of dropout for instance, are drawn again after the block: on the CPU and on the device."""
    own = generator_state(device)
    with torch.random.fork_rng([]):
        try:
            yield
        finally:
            if own is not None:
                set_generator_state(own, device)


@contextmanager
def unchanged() -> Iterator[None]:
    """The present GPU and all generators of GPUs are afterwards as before, if any GPU was used before."""
    put_back = kinds.kept()
    try:
        yield
    finally:
        put_back()


@contextmanager
def deterministic(wanted: bool, device: torch.device) -> Iterator[None]:
    """A GPU computes with kernels in here that give the same bits each time; torch is afterwards as before.

    torch refuses an operation that has none. The matrices' library reads its setting once, so it has to come before
    the first use of the GPU.
    """
    if not wanted or not is_gpu(device):
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels of attention add up in any order on the way back
            yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


@contextmanager
def tf32(wanted: bool, device: torch.device) -> Iterator[None]:
    """A GPU rounds what goes into products of fp32 matrices and convolutions to 10 bits in here, or none of it.

    torch by itself rounds in convolutions and LSTMs, and not in other products. Nothing happens on the CPU. Set by the
    older of torch's two ways: after the newer one (`fp32_precision`) whoever reads the older one gets an error, as
    torch's own compiler and the trainers of others do (torch 2.13).
    """
    if not is_gpu(device):
        yield
        return
    flags: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [flag.allow_tf32 for flag in flags]
    for flag in flags:
        flag.allow_tf32 = wanted
    try:
        yield
    finally:
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value


def why_slow(precision: str, device: torch.device) -> str:
    """Why `precision` brings nothing on this device; empty: it does, or nothing is known of it."""
    if precision == "tf32" and not is_gpu(device):
        return "CPUs do not have it, so they compute in fp32, with its bits"
    if device.type == kinds.CUDA.name and precision in ("tf32", "bf16") and torch.version.cuda is not None:
        has = torch.cuda.is_bf16_supported(including_emulation=False)  # both came with the same generation
        what = "do without" if precision == "tf32" else "emulate"
        return "" if has else f"GPUs of kind {torch.cuda.get_device_name(device)} {what} it; it is no faster than fp32"
    if precision == "bf16" and not is_gpu(device):
        found = torch.cpu.get_capabilities()
        if found.get("architecture") == "x86_64" and not (found.get("avx512_bf16") or found.get("amx_bf16")):
            return "this CPU emulates it (it has neither avx512_bf16 nor amx_bf16); it is slower than fp32"
    return ""


# Memory.


def page_locked(size: int, dtype: torch.dtype) -> Tensor:
    """An empty tensor in memory of the host that GPUs read themselves; in ordinary memory where there is no GPU."""
    kind = kinds.found()  # what Apple's GPUs share with the host is theirs without that
    return torch.empty(size, dtype=dtype, pin_memory=kind is not kinds.MPS and kind.module.is_available())


def lock_pages(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor, copied into page-locked memory where it goes from the host to a GPU."""
    if is_gpu(device) and tensor.device.type == "cpu":
        # else the host waits for the copy, whatever non_blocking says
        return page_locked(tensor.numel(), tensor.dtype).view(tensor.shape).copy_(tensor)
    return tensor


def give_back(device: torch.device) -> None:
    """Give unused memory of a GPU back to it."""
    if is_gpu(device):
        _module(device).empty_cache()


def begin_count(device: torch.device) -> None:
    """Largest amounts of memory, as `usage` tells them, are counted from here on; on the CPU nothing happens."""
    if hasattr(_module(device), "reset_peak_memory_stats"):
        _module(device).reset_peak_memory_stats(device)


def usage(device: torch.device) -> dict[str, float]:
    """Largest memory of tensors and of torch's pool since `begin_count`, in MiB, and how busy the GPU is, in percent.

    Empty for the CPU, and for a kind that does not tell. The last only where NVIDIA's library of counters is installed
    (nvidia-ml-py): it is about the second before, and about all who use the GPU.
    """
    if not hasattr(_module(device), "max_memory_reserved"):
        return {}
    found = {
        "gpu_peak_mb": _module(device).max_memory_allocated(device) / 2**20,
        "gpu_reserved_mb": _module(device).max_memory_reserved(device) / 2**20,
    }
    try:
        found["gpu_utilization"] = float(_module(device).utilization(device))
    except (ImportError, AttributeError, RuntimeError):  # not installed, not of this kind, or its driver does not tell
        log.debug("how busy the GPU is cannot be read")
    return found


# What goes wrong.


def is_fault(error: BaseException) -> bool:
    """Has a GPU failed, so that nothing can be computed on it by this process any more?

    A failed assertion of a kernel (an index outside a table), an illegal address, a GPU that was lost. Memory that is
    at its end is no fault.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, _FAULT) and (_FAULT is not RuntimeError or _WORDS in str(error))


def injected_fault() -> RuntimeError:
    """An error as that of a kernel whose assertion failed, for tests."""
    return _FAULT(f"{_WORDS}: device-side assert triggered")


def fault(error: BaseException, where: str) -> DeviceError:
    """The error that ends a run after a fault. where: what was computed; the driver's words are in the log alone."""
    words = str(error).partition("\n")[0][:200]
    return DeviceError(
        f"the GPU failed {where} ({type(error).__name__}: {words}); nothing more can be computed in this process. An "
        "id outside the vocabulary does that, and so does a broken GPU: CUDA_LAUNCH_BLOCKING=1 names the line"
    )


def versions(device: torch.device) -> dict[str, str]:
    """Name of the GPU, of its driver and of the libraries that compute on it; empty for the CPU."""
    if device.type not in CHOICES or not is_gpu(device):
        return {}
    if device.type != kinds.CUDA.name:
        return {"gpu": f"{device.type}, {platform.machine()}"}
    properties = torch.cuda.get_device_properties(device)
    driver = Path("/proc/driver/nvidia/version")
    found = {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": driver.read_text().partition("\n")[0].partition("Module ")[2].split()[0] if driver.exists() else "",
        "cuda": torch.version.cuda or torch.version.hip or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "",
    }
    return {name: value for name, value in found.items() if value}


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
