"""FedKSeed on two numbers, with three directions and draws that a reader can follow by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from toy import Point, Quadratic

from fedtorch.algorithms.seeds.draws import Candidates
from fedtorch.algorithms.seeds.fedkseed import FedKSeed
from fedtorch.core.directions import numbers

SIGNS = ((1, 1), (1, -1), (-1, 1))
"""z_0, z_1, z_2."""
DRAWS = {("a", 0): (0, 1), ("b", 0): (0, 2), ("a", 1): (2, 0), ("b", 1): (1, 1)}
"""(client, round) -> the directions of its two steps."""


@cache
def seed_of(signs: tuple[int, ...], after: int = 0) -> int:
    """The first seed whose direction begins with these signs."""
    return next(seed for seed in range(after, 10_000) if tuple(numbers("sign", seed, 0, len(signs))) == signs)


@dataclass(frozen=True)
class ByHand(FedKSeed):
    """Directions and draws of the example."""

    seeds: int = 3
    eps: float = 0.5
    weights: str = "equal"  # type: ignore[assignment]

    def seed(self, candidate: int) -> int:
        return seed_of(SIGNS[candidate])

    def drawn(self, client: str, round: int, chances: Tensor | None = None) -> Candidates:
        return np.array(DRAWS[client, round])


@dataclass(frozen=True)
class Optima(Quadratic):
    """Each client's loss is ½ |w − its optimum|²; of each client the same one row."""

    main_metric = "nearness"
    clients: Mapping[str, Any] = field(default_factory=lambda: {"a": (1.0, 0.0), "b": (0.0, 2.0)})
    start: tuple[float, ...] = (0.0, 0.0)
    rows: int = 1

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        return {name: {"train": self.rows, "dev": 1, "test": 1} for name in self.clients}

    def load(self, client: str, split: str) -> Sequence[Any]:
        return [tuple(map(float, self.clients[client]))] * self.manifest()[client][split]

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        assert isinstance(model, Point)
        return (0.5 * (model.w - batch) ** 2).sum(), len(batch)

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[float]:
        assert isinstance(model, Point)
        return [-float(((model.w - torch.tensor(each)) ** 2).sum()) for each in examples]

    def save_model(self, model: nn.Module, folder: Any) -> None:
        folder.mkdir(parents=True)
        save_file({name: part.detach().clone() for name, part in model.named_parameters()}, folder / "w.safetensors")
