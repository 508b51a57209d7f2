"""Ranks that share out a model: the memory that each has for itself until the model is in parts, and its bits."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from torch import Tensor, nn

pytest.importorskip("deepspeed")

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, Config, EngineConfig, PartitionConfig, RunConfig, SystemConfig
from fedtorch.core.weights import digest_of
from fedtorch.setup import engine as building
from fedtorch.tasks.base import Scores, Task
from fedtorch.train.zero import BUCKET

pytestmark = pytest.mark.processes

WIDTH, LAYERS = 1000, 25
LAYER = 4 * WIDTH * WIDTH
WHOLE = LAYERS * LAYER
PAGE = os.sysconf("SC_PAGE_SIZE")
_M_MMAP_THRESHOLD = -3  # as in malloc.h


class Deep(nn.Module):
    """Matrices one after the other, and a buffer that is drawn."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x + self.shift).tanh()
        return x


@dataclass(frozen=True)
class Sizes(Task):
    """Vectors whose mean square is made small."""

    main_metric: ClassVar[str] = "size"
    width: int = WIDTH
    layers: int = LAYERS

    def manifest(self) -> dict[str, dict[str, int]]:
        return {name: {"train": 4, "dev": 0, "test": 0} for name in "ab"}

    def load(self, client: str, split: str) -> list[float]:
        return [float(number + (client == "b")) for number in range(self.manifest()[client][split])]

    def build_model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Deep(self.width, self.layers)

    def collate(self, examples: Sequence[Any], train: bool) -> Tensor:
        return torch.tensor(examples)[:, None] + torch.linspace(0, 1, self.width)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        return model(batch).square().mean(1).sum(), len(batch)

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[float]:
        return [0.0 for _ in examples]

    def score(self, examples: Sequence[Any], predictions: Sequence[float]) -> Scores:
        return {}


def private_bytes() -> int:
    """Memory of this process's own, without files and what it has mapped of another's, which is there once."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())  # to look at all pages takes long
    return (resident - shared) * PAGE


class Watched:
    """The most private memory within the block, beyond that at its begin."""

    def __enter__(self) -> Watched:
        self.most, self._ended, self._begun = 0, threading.Event(), private_bytes()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.most = max(self.most, private_bytes() - self._begun)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def settings(folder: Path, engine: EngineConfig, sizes: int | tuple[int, ...], **changes: Any) -> Config:
    client = ClientConfig(optimizer="sgd", lr=0.1, batch_size=2, accumulation=2, steps=2)
    system = SystemConfig(ranks_per_worker=sizes, server_works=False)
    return make_config(folder, Sizes(**changes), client=client, engine=engine, system=system)


def begun(config: Config) -> int:
    """Bytes that this rank has for itself at most, until a worker's ranks have their parts of the model."""
    import transformers.core_model_loading  # noqa: F401

    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)  # what is let go of is given back to the system at once
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=60) as comm, Watched() as watched:
        runner = make_runner(config, comm)
        runner._share_initial_weights()
        comm.barrier("begun", round=0)
    return watched.most


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "engine", [EngineConfig(kind="fsdp"), EngineConfig(kind="deepspeed", stage=3)], ids=["fsdp", "zero3"]
)
def test_no_rank_holds_a_whole_model_while_it_is_built(engine: EngineConfig, tmp_path: Path) -> None:
    server, *ranks = run_ranks(begun, 3, settings(tmp_path, engine, 2), timeout=100)
    share = WHOLE / 2
    if engine.kind == "deepspeed":  # masters too, and the bucket, whose size is not the model's
        share = 2 * share + 4 * BUCKET
    assert all(rank < 1.2 * share + LAYER for rank in ranks)
    assert server < 1.1 * WHOLE  # beside what others read of it


def trained(config: Config, draws: bool) -> tuple[str, list[bool]]:
    """Digest of the weights after two rounds, and whether the parameters were built without values. draws: refuses."""

    @contextmanager
    def refusing() -> Iterator[None]:
        raise ValueError("no shapes alone")
        yield

    if draws:
        building.without_values = refusing  # type: ignore[assignment]
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=60) as comm:
        runner = make_runner(config, comm)
        bare = [parameter.is_meta for parameter in runner.components.engine.module.parameters()]
        runner.run()
        return digest_of({"weights": runner.context.vectors.weights}), bare


@pytest.mark.timeout(400)
@pytest.mark.parametrize("stage", [0, 1, 3], ids=["fsdp", "zero1", "zero3"])
def test_weights_that_the_server_sends_give_the_bits_of_those_that_every_rank_draws(stage: int, tmp_path: Path) -> None:
    """Private and frozen ones and a drawn buffer too; some are mapped and some, which are small, are sent."""
    engine = EngineConfig(kind="deepspeed", stage=stage) if stage else EngineConfig(kind="fsdp")
    config = settings(tmp_path, engine, 2, width=64, layers=15)
    config = replace(config, partition=PartitionConfig(private=("layers.1.*",), frozen=("layers.2.*",)))
    found = []
    for draws in (False, True):
        own = replace(config, run=RunConfig(name=str(draws), dir=str(tmp_path)))
        found.append(run_ranks(trained, 3, own, draws, timeout=150))
    assert found[0][0] == found[1][0]
    assert [all(bare) for _, bare in found[0]] == [False, True, True]
    assert not any(any(bare) for _, bare in found[1])
