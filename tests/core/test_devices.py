"""One helper for GPUs: what it says where there is none, and what it changes for a while."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretended_device import install
from ranks import run_ranks

from fedtorch.core import devices
from fedtorch.core.errors import ConfigError, DeviceError, error_of_code


@pytest.fixture
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is loaded, and torch cannot use it."""
    monkeypatch.setattr(devices, "has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "_said", set())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("_driver")
def test_a_gpu_that_torch_cannot_use_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert devices.own("auto") == devices.own("auto") == devices.own("cpu") == devices.CPU
    assert len(caplog.records) == 1 and "there is a driver, but torch" in caplog.text
    assert "built for 13.0, cannot use it: it may be too old" in caplog.text


@pytest.mark.usefixtures("_driver")
def test_in_a_job_of_several_machines_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torch finds no GPU .* mend that, or set system.device to cpu"):
        devices.own("auto")
    assert devices.own("cpu") == devices.CPU


@pytest.mark.usefixtures("_driver")
def test_hidden_gpus_are_no_surprise(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.own("auto") == devices.CPU and not caplog.records and devices.names() == []
    said = r"torch finds no GPU \(CUDA_VISIBLE_DEVICES is empty\); set it to auto or cpu"
    with pytest.raises(ConfigError, match=said):
        devices.own("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-7")
    assert devices.names() == ["2", "GPU-7"]


@pytest.mark.parametrize(
    ("ranks", "gpus", "serves", "expected"),
    [
        (9, 8, True, ["cpu", *(f"cuda:{number}" for number in range(8))]),
        (9, 8, False, [*(f"cuda:{number}" for number in range(8)), "cuda:0"]),
        (8, 8, True, [f"cuda:{number}" for number in range(8)]),  # NCCL carries everything, the server's part too
        (4, 2, True, ["cpu", "cuda:0", "cuda:1", "cuda:0"]),
        (2, 0, True, ["cpu", "cpu"]),
    ],
)
def test_a_server_that_only_serves_leaves_the_gpus_to_the_workers(
    ranks: int, gpus: int, serves: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "count", lambda *_: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.version, "cuda", None)  # whatever wheel this is: nothing is asked of these GPUs
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    for machine in (0, 1):  # of the second one all ranks train
        found = []
        for local in range(ranks):
            monkeypatch.setenv("LOCAL_RANK", str(local))
            monkeypatch.setenv("RANK", str(machine * ranks + local))
            found.append(str(devices.own("auto", server_serves=serves)))
        every = [f"cuda:{local % gpus}" if gpus else "cpu" for local in range(ranks)]
        assert found == (every if machine else expected)


@pytest.mark.parametrize(
    ("capability", "built", "works"),
    [
        ((9, 0), ["sm_80", "sm_90a"], True),
        ((8, 6), ["sm_80"], True),  # a later one of the same generation
        ((8, 0), ["sm_86", "sm_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # compiled there, from intermediate code
        ((7, 0), ["sm_75", "sm_80", "compute_90"], False),
        ((7, 0), [], True),
    ],
)
def test_a_build_without_kernels_for_the_gpu_is_told(
    capability: tuple[int, int],
    built: list[str],
    works: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "count", lambda *_: 1)
    monkeypatch.setattr(devices, "_said", set())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old One")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name in ("LOCAL_RANK", "RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert devices.own("auto") == (torch.device("cuda", 0) if works else devices.CPU)
    if works:
        assert not caplog.records
        return
    assert f"Old One is of kind sm_{capability[0]}{capability[1]}, for which torch" in caplog.text
    with pytest.raises(
        ConfigError, match="system.device is cuda but Old One .* has no kernels .*set it to auto or cpu"
    ):
        devices.own("cuda")


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (devices.injected_fault(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("shapes do not fit"), False),
        (IndexError("CUDA error"), False),
    ],
)
def test_only_a_gpu_that_failed_is_a_fault(error: Exception, is_fault: bool) -> None:
    assert devices.is_fault(error) is is_fault


def test_a_fault_has_a_code_of_its_own() -> None:
    error = devices.fault(devices.injected_fault(), "in round 1")
    assert error.exit_code == 11 and isinstance(error_of_code(11, "it failed"), DeviceError)
    assert str(error).startswith("the GPU failed in round 1 (AcceleratorError: CUDA error: device-side assert")


def settings() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.flash_sdp_enabled()


def compute() -> Any:
    """Settings of torch before the block, in it on the CPU, in it on a device, and in one that asks for nothing."""
    found = [settings()]
    for device in (devices.CPU, install()):
        with devices.deterministic(True, device):
            found.append(settings())
    with devices.deterministic(False, device):
        found.append(settings())
    return found


@pytest.mark.processes
def test_a_gpu_computes_with_deterministic_kernels_where_they_are_asked_for() -> None:
    assert run_ranks(compute, 1)[0] == [(False, True), (False, True), (True, False), (False, True)]


def flags() -> tuple[bool, bool, str]:
    """Flags of what is rounded: on GPUs matrices and convolutions, and on CPUs."""
    products = torch.backends.mkldnn.matmul.fp32_precision
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, products


def test_a_gpu_rounds_products_where_it_is_asked_for_and_nothing_else_does() -> None:
    """Of convolutions and LSTMs torch's own choice is to round. The flags can be read in every way meanwhile."""
    gpu, before = torch.device("meta"), flags()
    assert before[:2] == (False, True)  # the CPU's own is "none", or "ieee" after somebody has set it and put it back
    for wanted, level in ((True, "high"), (False, "highest")):
        with devices.tf32(wanted, gpu):
            assert flags() == (wanted, wanted, before[2]) and torch.get_float32_matmul_precision() == level
        with devices.tf32(wanted, devices.CPU):
            assert flags() == before
    assert flags() == before


@pytest.mark.parametrize(
    ("precision", "kind", "has", "words"),
    [
        ("fp32", "cpu", False, ""),
        ("tf32", "cpu", True, "CPUs do not have it, so they compute in fp32, with its bits"),
        ("bf16", "cpu", True, ""),
        ("bf16", "cpu", False, "this CPU emulates it (it has neither avx512_bf16 nor amx_bf16); it is slower than"),
        ("fp16", "cuda", False, ""),
        ("bf16", "cuda", False, "GPUs of kind V100 emulate it; it is no faster than fp32"),
        ("tf32", "cuda", False, "GPUs of kind V100 do without it; it is no faster than fp32"),
        ("tf32", "cuda", True, ""),
        ("bf16", "cuda", True, ""),
    ],
)
def test_a_precision_that_brings_nothing_is_told(
    precision: str, kind: str, has: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's answers are made up."""
    can = {"architecture": "x86_64", "avx512_bf16": has, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "V100")
    said = devices.why_slow(precision, torch.device(kind))
    assert said.startswith(words) and bool(said) == bool(words)
    can["architecture"] = "aarch64"
    assert kind == "cuda" or precision == "tf32" or devices.why_slow(precision, torch.device(kind)) == ""


def test_what_a_gpu_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are made up; tests/gpu sees the real ones on a GPU."""
    properties = SimpleNamespace(name="H", major=9, minor=0, uuid="GPU-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 8))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92000)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    gpu = torch.device("cuda", 1)
    found = devices.versions(gpu)
    assert found.pop("driver", "-") and found == {
        "gpu": "H", "compute_capability": "9.0", "cuda": "13.0", "cudnn": "92000", "nccl": "2.29.7",
    }  # fmt: skip
    assert devices.identity(gpu) == "GPU-1" and devices.free_bytes(gpu) == (3, 8) and devices.present() == gpu
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 << 20)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 6 << 20)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 87)
    assert devices.usage(gpu) == {"gpu_peak_mb": 5.0, "gpu_reserved_mb": 6.0, "gpu_utilization": 87.0}
    assert devices.usage(devices.CPU) == {}
    assert devices.versions(devices.CPU) == {} and devices.free_bytes(devices.CPU) == (0, 0)
    monkeypatch.setattr(devices, "count", lambda *_: 2)
    assert devices.kind() == torch.device("cuda")
    monkeypatch.setattr(devices, "count", lambda *_: 0)
    assert devices.kind() == devices.CPU


def test_the_present_gpu_and_its_generators_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, Any]] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["state"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: done.append(("states", states)))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(("device", device)))
    for is_used, expected in ((False, []), (True, [("states", ["state"]), ("device", 1)])):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda is_used=is_used: is_used)
        with pytest.raises(KeyError), devices.unchanged():
            raise KeyError
        assert done == expected


@pytest.mark.parametrize(
    ("built", "driver", "said"),
    [(None, False, "is built for the CPU alone"), ("13.0", False, "no driver of a GPU is loaded")],
)
def test_why_there_is_no_gpu(built: str | None, driver: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(devices, "has_driver", lambda: driver)
    assert said in devices.why_none()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.names() == ["0", "1"]


def test_a_device_without_float64_is_told_from_one_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.has_float64(devices.CPU)

    def refuses(*size: int, **about: Any) -> torch.Tensor:
        raise TypeError("this kind of device has no float64")

    monkeypatch.setattr(torch, "zeros", refuses)
    assert not devices.has_float64(devices.CPU)
