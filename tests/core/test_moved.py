"""Copies of many tensors at once: the same numbers, and few copies between host and device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from pretended_device import install, used
from ranks import run_ranks
from torch import Tensor, nn

from fedtorch.config.schema import ClientConfig
from fedtorch.core import moved
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine
from fedtorch.train.optim import load_state

CPU = torch.device("cpu")


def some() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (), (0,), (5,), (2, 2, 2), (7,)]
    tensors = [torch.randn(shape, generator=draw) for shape in shapes]
    return [*tensors, torch.arange(5), torch.arange(3), torch.randn(4, 3, generator=draw).t(), tensors[0].bfloat16()]


@pytest.mark.parametrize("piece_bytes", [0, 40, 1 << 20])
def test_copies_have_the_numbers_and_memory_of_their_own(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` stands for another device for the pieces; on the CPU there is one copy of each."""
    monkeypatch.setattr(moved, "PIECE_BYTES", piece_bytes)
    tensors = some()
    copies = moved.moved(tensors, CPU)
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(tensors, copies, strict=True))
    storages = {tensor.untyped_storage().data_ptr() for tensor in (*tensors, *copies) if tensor.numel()}
    assert len(storages) == 2 * sum(tensor.numel() > 0 for tensor in tensors)
    assert moved.moved([], CPU) == []


def test_pieces_have_one_dtype_and_are_no_larger_than_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved, "PIECE_BYTES", 70)
    sizes = [[tensor.numel() for tensor in piece] for piece in moved._pieces(some(), torch.device("meta"))]
    assert sizes == [[12, 1, 0], [5, 8], [7], [5, 3], [12], [12]]
    assert [len(piece) for piece in moved._pieces(some(), CPU)] == [1] * len(some())


class Deep(nn.Module):
    """Many small parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def state_on(device: torch.device) -> tuple[dict[str, Tensor], dict[str, float], Counter[str], Counter[str]]:
    """An optimiser's state after two steps, put back and read again; copies that reading and putting back took."""
    engine = Engine(Deep(), Partition(), device)
    hp = ClientConfig(optimizer="adamw", lr=0.1)
    batch = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    engine.start(engine.initial_shared, None, hp, steps=2, seed=0)
    for _ in range(2):
        engine.step(lambda model, inputs: (model(inputs).square().sum(), 3), [batch], 1)
    used.clear()
    tensors, numbers = engine.optimizer_state()
    reading = Counter(used)
    used.clear()
    assert engine._optimizer is not None
    load_state(engine._optimizer, engine.trained_names, engine.trained, tensors, numbers)
    putting = Counter(used)
    again, _ = engine.optimizer_state()
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    return tensors, dict(numbers), reading, putting


def on_both() -> Any:
    device = install()
    cpu, there = state_on(CPU), state_on(device)
    assert cpu[0].keys() == there[0].keys() and len(cpu[0]) == 40 * 3
    assert all(torch.equal(cpu[0][name], there[0][name]) and there[0][name].device == CPU for name in cpu[0])
    return there[2]["copied out"], there[3]["copied in"]


@pytest.mark.processes
def test_an_optimisers_state_comes_and_goes_in_a_few_copies() -> None:
    """Of 40 parameters with two moments each: one by one that was 80 copies each way, and 120 questions for zeros."""
    out, into = run_ranks(on_both, 1)[0]
    assert out <= 6 and into <= 3, (out, into)
