"""What FSDP's ranks allocate, as torch's profiler counts it, stays near the formula of the dry run."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core.weights import Partition
from fedtorch.train.fsdp import FsdpEngine
from fedtorch.train.loop import Step, train
from fedtorch.train.memory import Size, states

CPU = torch.device("cpu")
HP = ClientConfig(optimizer="adamw", lr=1e-3, max_grad_norm=1.0)


def gpt2(vocabulary: int = 1000) -> nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=256, n_layer=8, n_head=4, n_positions=16))


def loss(model: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    return model(input_ids=ids, labels=ids, use_cache=False).loss * 7, 7


def peak(action: Callable[[], Any]) -> int:
    """The most bytes that were allocated at once since the action began."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        action()
    now = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


class Living(TorchDispatchMode):
    """Counts the bytes of tensors that are made in here and live, whichever thread lets go of them."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.now, self.most = set[int](), 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, list | tuple) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return made

    def count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def measured(settings: EngineConfig, vocabulary: int) -> dict[str, int]:
    with DistributedCommunicator.join(("c",), timeout_s=60) as comm:
        engine = FsdpEngine(gpt2(vocabulary), Partition(), CPU, settings=settings)
        engine.join(comm.join_worker((0, 1)))
        engine.load(engine.initial_shared)
        rows = sum(part.nbytes for part in engine.trained)
        engine.start(engine.initial_shared, None, HP, steps=2, seed=0)
        batches = [torch.randint(1000, (1, 8), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
        stepping = peak(lambda: train(engine, [Step(batches[i : i + 2], 2, 0) for i in (0, 2)], loss))
        received, sent = engine.initial_shared.clone(), engine.shared.empty()
        loading = peak(lambda: engine.load(received))
        with Living() as living:
            for there in (received, sent, *engine.trained):
                living.count(there.untyped_storage())
            own = living.now
            engine.difference(received, sent)
        return {"rows": rows, "stepping": stepping, "loading": loading, "reading": living.most - own}


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("vocabulary", [1000, pytest.param(30000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_rank_allocates_what_the_dry_run_says(precision: Any, vocabulary: int) -> None:
    settings, size = EngineConfig(kind="fsdp", precision=precision), Size.of(gpt2(vocabulary))
    said = states(size, settings, ranks=2).device
    ranks = run_ranks(measured, 2, settings, vocabulary, timeout=100)
    for found in ranks:
        assert found["rows"] == pytest.approx(2 * size.numbers, rel=0.01)  # half of fp32
        assert found["loading"] < 1e4  # every rank copies its rows
        assert found["reading"] < 1.6 * 4 * max(size.block, size.rest)  # whole parameters of a block, and its rows
    stepping = min(found["stepping"] for found in ranks)  # what gloo's threads let go of counts on, on one or both
    assert 0.7 * said < ranks[0]["rows"] + stepping < 1.2 * said
