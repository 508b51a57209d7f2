"""Every place outside of `core.devices` that asks for a GPU, with a test that takes its branch; no GPU is needed."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core import devices
from fedtorch.train import fsdp_shards, split_engine, zero
from fedtorch.trainers import arguments, process_state

ROOT = Path(__file__).parents[2]
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
OVER_NCCL = (
    "tests/comm/test_over_nccl.py::test_a_server_and_two_workers_train_on_gpus_to_the_bits_of_one_process_on_the_cpu"
)
DIES = "tests/comm/test_over_nccl.py::test_a_rank_that_dies_within_a_payload_is_named_by_all_others"
ON_A_DEVICE = "tests/train/test_pretended_device.py::test_every_algorithm_gives_the_same_bits_on_a_device"
BACKEND, RULES = "tests/comm/test_backend.py::", "tests/setup/test_rules_by_hand.py::"
HERE = "tests/core/test_gpu_branches.py::"
TAKEN = {
    "fedtorch/comm/transport/backend.py:log_if_shared": f"{BACKEND}test_ranks_that_share_gpus_say_so_once_per_node",
    "fedtorch/comm/transport/backend.py:of": f"{BACKEND}test_what_a_rank_says_of_its_device",
    "fedtorch/comm/transport/device.py:_begin": OVER_NCCL,
    "fedtorch/comm/transport/device.py:drop": DIES,
    "fedtorch/comm/worker.py:of": OVER_NCCL,
    "fedtorch/rounds/placement.py:server_would_idle": (
        "tests/rounds/test_server_works.py::"
        "test_it_trains_where_its_gpu_would_idle_and_only_serves_where_gpus_are_shared"
    ),
    "fedtorch/setup/rules/engine.py:flash_attention_has_what_it_needs": (
        "tests/train/test_attention.py::test_flash_attention_needs_a_gpu_16_bits_and_its_package"
    ),
    "fedtorch/setup/rules/engine.py:the_device_has_the_precision": (
        f"{RULES}test_fp16_needs_a_cpu_that_has_it_where_there_is_no_gpu"
    ),
    "fedtorch/train/attention.py:use_attention": (
        "tests/train/test_attention.py::test_a_module_without_such_models_and_classes_without_the_choice_are_refused"
    ),
    "fedtorch/train/engine.py:upload": ON_A_DEVICE,
    "fedtorch/train/fsdp_shards.py:shard_out": f"{HERE}test_fsdp_locks_pages_of_what_it_keeps_on_the_host_for_a_gpu",
    "fedtorch/train/pinned_copy.py:__init__": ON_A_DEVICE,
    "fedtorch/train/pinned_copy.py:_note": ON_A_DEVICE,
    "fedtorch/train/split_engine.py:_make_group": f"{HERE}test_a_rank_alone_has_nccl_beside_gloo_on_a_gpu",
    "fedtorch/train/split_engine.py:check_worker": (
        "tests/train/test_deepspeed_devices.py::test_ranks_of_a_worker_that_share_a_gpu_are_refused"
    ),
    "fedtorch/train/zero.py:initialize": f"{HERE}test_deepspeed_locks_pages_of_what_it_keeps_on_the_host_for_a_gpu",
    "fedtorch/trainers/arguments.py:made": f"{HERE}test_a_trainer_of_transformers_takes_one_gpu",
    "fedtorch/trainers/process_state.py:quiet_import": f"{HERE}test_deepspeed_is_not_told_of_a_cpu_where_a_gpu_is",
}
"""file:function -> a test that takes its branch of a GPU; runs over pretended devices, or by a device's name"""


class _Asking(ast.NodeVisitor):
    """Functions that ask `devices.is_gpu` or `devices.count`."""

    def __init__(self) -> None:
        self.within, self.found = list[str](), set[str]()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.within.append(node.name)
        self.generic_visit(node)
        self.within.pop()

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called in ("devices.is_gpu", "is_gpu", "devices.count"):
            self.found.add(self.within[-1])
        self.generic_visit(node)


def asking() -> set[str]:
    found = set[str]()
    for path in [*(ROOT / "fedtorch").rglob("*.py"), *(ROOT / "launchers").rglob("*.py")]:
        name = path.relative_to(ROOT).as_posix()
        if name != "fedtorch/core/devices.py":
            visitor = _Asking()
            visitor.visit(ast.parse(path.read_text()))
            found |= {f"{name}:{function}" for function in visitor.found}
    return found


@pytest.mark.long
def test_each_place_that_asks_for_a_gpu_has_a_test_that_takes_its_branch() -> None:
    assert asking() == set(TAKEN)
    for test in TAKEN.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


class Reached(Exception):
    """As far as a test goes."""


@pytest.mark.parametrize(("device", "backend"), [(GPU, devices.BACKENDS), (CPU, "gloo")])
def test_a_rank_alone_has_nccl_beside_gloo_on_a_gpu(
    device: torch.device, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(asked: str, **about: Any) -> None:
        assert asked == backend and about["world_size"] == 1
        raise Reached

    monkeypatch.setattr(split_engine.dist, "init_process_group", init)
    monkeypatch.setattr(split_engine.dist, "is_initialized", lambda: False)  # another test's may be there
    alone: Any = SimpleNamespace(device=device, _size=1)
    with pytest.raises(Reached):
        split_engine.SplitEngine._make_group(alone)


@pytest.mark.parametrize("device", [GPU, CPU])
def test_fsdp_locks_pages_of_what_it_keeps_on_the_host_for_a_gpu(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(module: nn.Module, *, offload_policy: Any, **about: Any) -> None:
        assert offload_policy.pin_memory == (device == GPU)
        raise Reached

    monkeypatch.setattr(fsdp_shards.dist, "group", SimpleNamespace(WORLD=object()))
    monkeypatch.setattr(fsdp_shards.DeviceMesh, "from_group", lambda *_: None)
    monkeypatch.setattr(fsdp_shards, "fully_shard", share)
    with pytest.raises(Reached):
        fsdp_shards.shard_out(nn.Linear(2, 2), EngineConfig(kind="fsdp", offload_parameters=True), device)


@pytest.mark.parametrize("device", [GPU, CPU])
def test_deepspeed_locks_pages_of_what_it_keeps_on_the_host_for_a_gpu(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def nothing() -> Any:
        yield

    def initialize(*, config: Any, **about: Any) -> tuple[str]:
        assert config["zero_optimization"]["offload_optimizer"]["pin_memory"] == (device == GPU)
        return ("engine",)

    monkeypatch.setattr(zero, "_sending_nothing", nothing)  # it imports DeepSpeed
    module, settings = nn.Linear(2, 2), EngineConfig(kind="deepspeed", stage=2, offload_optimizer=True)
    own, library = torch.optim.SGD(module.parameters(), lr=1.0), SimpleNamespace(initialize=initialize)
    assert zero.initialize(library, module, own, settings, device, ranks=1) == "engine"


@pytest.mark.parametrize("device", [GPU, CPU])
def test_a_trainer_of_transformers_takes_one_gpu(device: torch.device, tmp_path: Path) -> None:
    """All GPUs that the process sees would each get a copy of the model."""
    hp = ClientConfig(steps=1)
    kept = arguments.made(SimpleNamespace, {}, hp=hp, device=device, folder=tmp_path, seed=0, defaults={})  # type: ignore[arg-type]
    assert kept.use_cpu == (device == CPU) and getattr(kept, "_n_gpu", None) == (1 if device == GPU else None)


@pytest.mark.parametrize(("gpus", "told"), [(1, None), (0, "cpu")])
def test_deepspeed_is_not_told_of_a_cpu_where_a_gpu_is(
    gpus: int, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.delenv(process_state._DEEPSPEED, raising=False)
    monkeypatch.setattr(devices, "count", lambda *_: gpus)
    with process_state.quiet_import():
        assert os.environ.get(process_state._DEEPSPEED) == told
    assert process_state._DEEPSPEED not in os.environ
