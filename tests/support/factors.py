"""A layer of two factors, named as in peft, and a task in which every client has a matrix of its own to learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.tasks.base import Scores

A, B = "q.lora_A.default.weight", "q.lora_B.default.weight"


class Factors(nn.Module):
    """x → B A x + head, with names as peft's."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.q, self.head = nn.Module(), nn.Parameter(torch.zeros(4, dtype=torch.float64))
        for name, start in ((A, torch.randn(2, 3, generator=draw)), (B, torch.zeros(4, 2))):
            part = nn.Module()
            part.weight = nn.Parameter(start.double())
            setattr(self.q, name.split(".")[1], nn.ModuleDict({"default": part}))

        self.scale = 2.0  # of its rank, 2
        self.added: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        product = self.scale * (x @ self.get_parameter(A).T @ self.get_parameter(B).T)
        if self.added is not None:
            left, right = self.added
            product = product + 2.0 * (x @ right.T @ left.T)
        return product + self.head


@dataclass(frozen=True)
class Regression(Quadratic):
    """Every client has a matrix of its own to be learned."""

    def build_model(self, seed: int) -> nn.Module:
        return Factors()

    def load(self, client: str, split: str) -> list[tuple[Tensor, Tensor]]:
        a, b, count = self.clients[client]
        draw = torch.Generator().manual_seed(int(10 * a + b))
        target, xs = torch.randn(4, 3, generator=draw).double(), torch.randn(count, 3, generator=draw).double()
        return [(x, target @ x) for x in xs]

    def scale_adapter(self, model: Any, rank: int | None) -> float:
        model.scale = 4.0 / (rank or 2)
        return float(model.scale)

    def add_to_base(self, model: Any, factors: Any) -> None:
        model.added = factors["q"]

    def collate(self, examples: Any, train: bool) -> Any:
        return torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        return ((model(batch[0]) - batch[1]) ** 2).sum(), len(batch[0])

    def predict(self, model: nn.Module, examples: Any, batch_size: int) -> list[float]:
        return [-float(((model(x) - y) ** 2).sum()) for x, y in examples]

    def score(self, examples: Any, predictions: Any) -> Scores:
        return {"nearness": (sum(predictions), len(examples))}
