"""A scalar model with a labelled server and unlabelled clients, so that FedParsing's rounds can be redone by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.tasks.base import SERVER, Scores, Task


class Scalar(nn.Module):
    """A vector `w`, all of it `start`."""

    def __init__(self, start: float, size: int = 1) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((size,), start, dtype=torch.float64))


@dataclass(frozen=True)
class Toy(Task):
    """Scalar model w·x; the server minimises 0.5·(w − b)²; in training mode a client's input is x + d.

    clients: (x, d). rows: copies of its input that each client holds. size: numbers in w, all alike but for dropout.
    """

    main_metric = "nearness"

    clients: Mapping[str, tuple[float, float]] = ()  # type: ignore[assignment]
    b: float = 2.0
    rows: int = 1
    start: float = 0.0
    size: int = 1
    dropout: float = 0.0

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        return {**{name: {"train": self.rows} for name in self.clients}, "part0": {"dev": 1, "test": 1}}

    def server_examples(self) -> int:
        return 1

    def check(self, client: str) -> None:
        pass

    def load(self, client: str, split: str) -> Sequence[Any]:
        return [(self.b, 0.0)] if client in (SERVER, "part0") else [self.clients[client]] * self.rows

    def build_model(self, seed: int) -> nn.Module:
        return Scalar(self.start, self.size)

    def collate(self, examples: Sequence[Any], train: bool) -> Tensor:
        return torch.tensor(examples, dtype=torch.float64)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        assert isinstance(model, Scalar)
        return (0.5 * (model.w - batch[:, :1]) ** 2).sum(), len(batch)

    def outputs(self, model: nn.Module, batch: Tensor) -> Tensor:
        assert isinstance(model, Scalar)
        w = nn.functional.dropout(model.w, self.dropout, model.training)
        return w * (batch[:, :1] + (batch[:, 1:] if model.training else 0.0))

    def consistency(
        self, student: Tensor, teacher: Tensor, batch: Tensor, *, kind: str, mean: bool
    ) -> tuple[Tensor, int]:
        return (student - teacher).square().sum(), len(batch)

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[float]:
        assert isinstance(model, Scalar)
        return [-abs(float(model.w.mean()) - b) for b, _ in examples]

    def score(self, examples: Sequence[Any], predictions: Sequence[float]) -> Scores:
        return {"nearness": (sum(predictions), len(examples))}
