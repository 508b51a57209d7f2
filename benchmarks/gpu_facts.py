"""Parts `facts` and `copies` of the benchmark of GPUs: what the machine is, and how fast vectors come to the device."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_part import Setting

PACKAGES = ("transformers", "tokenizers", "huggingface_hub", "numpy", "pydantic", "deepspeed", "peft", "safetensors")
FAMILIES = ("t5", "bert", "gpt2")


def facts(setting: Setting) -> None:
    """Versions, the GPU, and which models train with deterministic algorithms."""
    setting.note("versions", python=platform.python_version(), torch=torch.__version__, **_versions())
    with setting.noting("GPU") as figures:
        figures.update(_gpu() if torch.cuda.is_available() else {"outcome": "left out", "said": _why_none()})
    with setting.noting("loops over vectors") as figures:
        from fedtorch.core import kernels

        figures["said"] = "numpy" if kernels.library() is None else "C"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS is first used
    device = torch.device(setting.device)
    for name, build in _networks().items():
        for wanted in (False, True):
            with setting.noting(f"{name}: two trainings, {'' if wanted else 'no '}deterministic algorithms") as figures:
                torch.use_deterministic_algorithms(wanted)
                first, second = (_trained(build, device) for _ in range(2))
                figures["equal_bits"] = torch.equal(first, second)
    torch.use_deterministic_algorithms(False)


def copies(setting: Setting) -> None:
    """Time 400 MB of fp32 both ways: through the package's windows, plainly, and from memory that is page-locked."""
    from fedtorch.train.pinned_copy import PinnedCopier

    device = torch.device(setting.device)
    host = torch.randn((4 if setting.small else 400) * 1_000_000 // 4)
    there, back = torch.empty_like(host, device=device), torch.empty_like(host)
    copier = PinnedCopier(device)
    ways: dict[str, Callable[[], Any]] = {
        "up, plain": lambda: there.copy_(host),
        "up, windows": lambda: copier.upload(host, there),
        "down, plain": lambda: back.copy_(there),
        "down, windows": lambda: copier.download(there, back),
        "down, windows, into new memory": lambda: copier.download(there),
        "down, plain, into new memory": lambda: there.cpu(),
    }
    if device.type == "cuda":
        locked = host.pin_memory()
        ways["up, page-locked"] = lambda: there.copy_(locked, non_blocking=True)
        ways["down, page-locked"] = lambda: locked.copy_(there, non_blocking=True)
    for name, call in ways.items():
        with setting.noting(name) as figures:
            seconds = min(_seconds(call, device) for _ in range(5))
            figures.update(seconds=seconds, gb_per_s=host.nbytes / 1e9 / seconds)


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def _gpu() -> dict[str, Any]:
    one = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    architectures = torch.cuda.get_arch_list()
    return {
        "name": one.name,
        "gpus": torch.cuda.device_count(),
        "memory_gb": total / 1e9,
        "free_gb": free / 1e9,
        "capability": f"{one.major}.{one.minor}",
        "wheel_for": " ".join(architectures),
        "driver": _asked("driver_version"),
        "mig": _asked("mig.mode.current"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "bf16": torch.cuda.is_bf16_supported(),
        "uuid": str(one.uuid)[:8],
        "control_file": Path("/dev/nvidiactl").exists(),
    }


def _asked(field: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip().replace("\n", ", ")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({type(error).__name__})"


def _why_none() -> str:
    there = "is" if Path("/dev/nvidiactl").exists() else "is not"
    return f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU; /dev/nvidiactl {there} there"


def _networks() -> dict[str, Callable[[], tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]]]:
    from benchmarks.token_models import loss_of, model_of

    def transformer(family: Any) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
        model = model_of(family, 500, 128, 2, 4, 64)
        return model, lambda module, ids: loss_of(family, module, ids)[0]

    def recurrent() -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
        layers = nn.ModuleList([nn.Embedding(500, 64), nn.LSTM(64, 64, bidirectional=True, batch_first=True)])
        return layers, lambda module, ids: module[1](module[0](ids))[0].square().sum()

    def convolving() -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
        layers = nn.ModuleList([nn.Embedding(500, 64), nn.Conv1d(64, 64, 3, padding=1)])
        return layers, lambda module, ids: module[1](module[0](ids).mT).amax(dim=2).square().sum()

    made = {family: (lambda family=family: transformer(family)) for family in FAMILIES}
    return {**made, "LSTM": recurrent, "convolution": convolving}


def _trained(build: Callable[[], tuple[nn.Module, Any]], device: torch.device) -> Tensor:
    """All weights after three steps, from the same seeds."""
    torch.manual_seed(0)
    model, loss = build()
    model.to(device).train()
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        ids = torch.randint(1, 500, (16, 64), generator=draw).to(device)
        optimizer.zero_grad()
        loss(model, ids).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()
