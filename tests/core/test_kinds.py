"""Intel's and Apple's GPUs: what is asked of torch's modules for them, which lack some of what NVIDIA's has.

The answers are made up; `tests/train/test_pretended_device.py` trains on a device that has as little as Apple's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedtorch.config.system import SystemConfig
from fedtorch.core import devices, kinds
from fedtorch.core.errors import ConfigError


class Apple(SimpleNamespace):
    """The functions of `torch.mps` that are asked for, and no others."""

    def __init__(self) -> None:
        super().__init__(calls=[])
        self.is_available, self.device_count = lambda: True, lambda: 1
        self.recommended_max_memory, self.driver_allocated_memory = lambda: 80, lambda: 30
        self.get_rng_state = lambda: torch.tensor([7])
        self.set_rng_state = lambda state: self.calls.append(("state", int(state)))
        self.manual_seed = lambda number: self.calls.append(("seed", number))
        self.empty_cache = lambda: self.calls.append(("empty", 0))


class Intel(SimpleNamespace):
    """Some of the functions of `torch.xpu`: two GPUs."""

    def __init__(self) -> None:
        super().__init__(calls=[])
        self.is_available = self.is_initialized = lambda: True
        self.device_count, self.current_device = lambda: 2, lambda: 1
        self.set_device = lambda device: self.calls.append(("device", device))
        self.mem_get_info = lambda device: (3, 8)
        self.get_device_properties = lambda device: SimpleNamespace(uuid="X-1")
        self.get_rng_state_all = lambda: ["state"]
        self.set_rng_state_all = lambda states: self.calls.append(("states", states))


def use(monkeypatch: pytest.MonkeyPatch, name: str, module: Any) -> torch.device:
    """torch has this module, and finds no GPU of another kind."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, name, module)
    for variable in ("LOCAL_RANK", "RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(variable, raising=False)
    return torch.device(name, 0)


def test_apples_gpu_is_found_and_asked_for_nothing_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    apple = Apple()
    gpu = use(monkeypatch, "mps", apple)
    assert devices.own("auto") == devices.own("mps") == devices.present() == gpu and devices.names() == ["0"]
    assert devices.kind() == torch.device("mps") and devices.count() == 1
    assert devices.free_bytes(gpu) == (50, 80) and devices.identity(gpu) == "" and devices.usage(gpu) == {}
    assert devices.new_stream(gpu) is None and not devices.page_locked(3, torch.float32).is_pinned()
    with pytest.raises(KeyError), devices.same_numbers_again(gpu):
        raise KeyError
    with pytest.raises(KeyError), devices.unchanged():
        raise KeyError
    devices.seed(3, gpu)
    devices.begin_count(gpu)
    devices.give_back(gpu)
    assert apple.calls == [("state", 7), ("state", 7), ("seed", 3), ("empty", 0)]
    assert list(devices.versions(gpu)) == ["gpu"] and devices.versions(gpu)["gpu"].startswith("mps, ")
    with pytest.raises(ConfigError, match="system.device is cuda but torch finds GPUs of kind mps alone; set"):
        devices.own("cuda")


def test_intels_gpus_are_dealt_to_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    intel = Intel()
    use(monkeypatch, "xpu", intel)
    monkeypatch.setenv("LOCAL_RANK", "3")
    gpu = torch.device("xpu", 1)
    assert devices.own("auto") == devices.own("xpu") == devices.present() == gpu
    assert devices.free_bytes(gpu) == (3, 8) and devices.identity(gpu) == "X-1"
    with devices.unchanged():
        intel.calls.clear()
    assert intel.calls == [("states", ["state"]), ("device", 1)] and devices.names() == ["0", "1"]
    monkeypatch.setenv("ZE_AFFINITY_MASK", "1")
    assert devices.names() == ["1"]


def test_an_event_of_a_kind_without_streams_takes_none() -> None:
    seen: list[tuple[Any, ...]] = []
    event = SimpleNamespace(record=lambda *given: seen.append(given))
    assert devices.noted(devices.CPU, event) is event and len(seen[0]) == 1  # the CPU's module has a stream


@pytest.mark.parametrize("kind", ["cpu", "xpu", "mps"])
def test_nccl_is_for_gpus_that_have_it(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"system.backend is nccl.*but system.device is {kind}; set .* to auto"):
        SystemConfig(device=kind, backend="nccl")
    assert kinds.named(kind if kind != "cpu" else "cuda").name in devices.CHOICES
