"""Where DeepSpeed's engine keeps what it has, in one process: weights once, torch's functions as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("deepspeed")

from fedtorch.config.schema import ClientConfig, EngineConfig
from fedtorch.core.weights import Partition
from fedtorch.train import zero
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
TORCHS_LINEAR = functional.linear


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(30, 12), nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 30, bias=False))


def engine_of(stage: int, optimizer: Any = "adamw", **partition: Any) -> Engine:
    hp = ClientConfig(optimizer=optimizer, lr=1e-2)
    settings = EngineConfig(kind="deepspeed", stage=stage)
    return DeepSpeedEngine(model(), Partition(**partition), CPU, settings=settings, hp=hp, make_module=model)


def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    logits = module(batch)
    return functional.cross_entropy(logits.flatten(0, 1), batch.flatten(), reduction="sum"), batch.numel()


def trained(engine: Engine, optimizer: Any = "adamw", loss_fn: Any = loss) -> Tensor:
    hp = ClientConfig(optimizer=optimizer, lr=1e-2, max_grad_norm=0.5)
    batches = [torch.randint(30, (2, 5), generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    engine.start(engine.initial_shared, None, hp, steps=3, seed=1)
    train(engine, [Step(batches[i : i + 2], 2, 0) for i in (0, 2, 4)], loss_fn)
    return engine.snapshot()


class Whole:
    """A loss that asks for whole passes, and notes whose product it meets."""

    whole_passes = True

    def __init__(self) -> None:
        self.met: set[Any] = set()

    def loss(self, module: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        self.met.add(functional.linear)
        return loss(module, batch)


def test_stage_3_leaves_torchs_product_to_others() -> None:
    """It puts its own there for the whole process, which has no forward derivative: only its own passes meet it."""
    engine, split, whole = engine_of(3), set(), Whole()

    def noted(module: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        split.add(functional.linear)
        return loss(module, batch)

    def fails(module: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        raise ValueError

    trained(engine, loss_fn=noted)
    assert functional.linear is TORCHS_LINEAR and split and TORCHS_LINEAR not in split
    trained(engine, loss_fn=whole.loss)
    assert whole.met == {TORCHS_LINEAR}
    with pytest.raises(ValueError):
        trained(engine, loss_fn=fails)
    assert functional.linear is TORCHS_LINEAR


@pytest.mark.parametrize("stage", [2, 3])
def test_weights_are_in_memory_once_before_they_are_split(stage: int) -> None:
    engine = engine_of(stage)
    places = {parameter.untyped_storage().data_ptr() for parameter in engine.module.parameters()}
    assert places == {engine.initial()[0].untyped_storage().data_ptr()}


@pytest.mark.parametrize("frozen", [(), ("0.*", "1.*")], ids=["all trained", "one parameter trained"])
def test_training_does_not_reach_the_initial_weights(frozen: tuple[str, ...]) -> None:
    """A parameter that is alone in its group is flat already: DeepSpeed would train it where it lies."""
    engine = engine_of(2, frozen=frozen)
    before = [tensor.clone() for tensor in engine.initial()]
    after = trained(engine)
    assert all(torch.equal(*pair) for pair in zip(engine.initial(), before, strict=True))
    assert not torch.equal(after, engine.initial_shared)


@pytest.mark.parametrize(
    ("stage", "optimizer"), [(2, "adamw"), (3, "adamw"), pytest.param(3, "adafactor", marks=pytest.mark.slow)]
)
def test_small_buckets_and_groups_change_nothing(stage: int, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters larger than a bucket, several of them in one, and a group of the optimiser for each few."""
    expected = trained(Engine(model(), Partition(), CPU), optimizer)
    monkeypatch.setattr(zero, "BUCKET", 512)
    way = (expected - Engine(model(), Partition(), CPU).initial_shared).norm()
    assert (trained(engine_of(stage, optimizer), optimizer) - expected).norm() < 1e-4 * way  # other orders of sums


def test_a_difference_is_that_of_the_plain_engine_wherever_it_is_written() -> None:
    engine = engine_of(3)
    trained(engine)
    start = torch.randn(engine.shared.size)
    expected = start - engine.flat
    out = torch.full_like(start, torch.nan)
    assert torch.equal(engine.difference(start), expected)
    assert engine.difference(start, out) is out and torch.equal(out, expected)
    assert torch.equal(engine.difference(start, start), expected)


def test_the_initial_weights_are_read_from_a_file_that_needs_no_name(tmp_path: Path) -> None:
    engine, plain = engine_of(3), Engine(model(), Partition(), CPU)
    engine.adopt_initial(tmp_path / "spill")
    assert not [*(tmp_path / "spill").iterdir()]
    assert torch.equal(engine.initial_shared, plain.initial_shared) and torch.equal(engine.flat, plain.flat)
    engine.initial_shared.zero_()  # another run's are received there
    assert not engine.initial_shared.any()
    (tmp_path / "file").touch()
    engine.adopt_initial(tmp_path / "file")  # no folder can be made: they stay in memory
    assert not engine.flat.any()
