"""A tiny task for tests of algorithms: each client's loss is ½·Σ a·(w − b)², so every rule can be redone by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedtorch.tasks.base import Scores, Task


class Point(nn.Module):
    """One parameter vector `w`, and a `head` that tests may declare private."""

    def __init__(self, start: Sequence[float], head: Sequence[float], dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=dtype))
        self.head = nn.Parameter(torch.tensor(head, dtype=dtype))


@dataclass(frozen=True)
class Quadratic(Task):
    """clients: name -> (a, b, n): curvature, optimum, number of examples.

    noise: every example of client i pulls towards b + noise·(its number in [-1, 1]), so the order of the examples
    matters to the bits. dropout: also the dropout seed does. dtype float64 for the papers' oracles.
    width: the start so many times over. memory: with more examples in a micro-batch than this there is none left.
    """

    main_metric: ClassVar[str] = "nearness"

    clients: Mapping[str, tuple[float, float, int]]
    start: tuple[float, ...] = (0.0,)
    head: tuple[float, ...] = ()
    noise: float = 0.0
    dropout: float = 0.0
    double: bool = True
    bad: tuple[str, ...] = ()
    poison: tuple[str, ...] = ()
    width: int = 1
    memory: int | None = None

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        return {name: {"train": n, "dev": min(n, 3), "test": min(n, 3)} for name, (_, _, n) in self.clients.items()}

    def check(self, client: str) -> None:
        """What `bad` and `poison` do shows in training only."""

    def load(self, client: str, split: str) -> Sequence[Any]:
        a, b, _ = self.clients[client]
        n = self.manifest()[client][split]
        if client in self.bad and split == "train":
            raise ValueError(f"the text of {client} must not travel")
        scale = float("nan") if client in self.poison and split == "train" else 1.0
        return [(a * scale, b + self.noise * (2 * i / max(1, n - 1) - 1)) for i in range(n)]

    def build_model(self, seed: int) -> nn.Module:
        return Point(self.start * self.width, self.head, torch.float64 if self.double else torch.float32)

    def collate(self, examples: Sequence[Any], train: bool) -> Tensor:
        return torch.tensor(examples, dtype=torch.float64 if self.double else torch.float32)

    def example_lengths(self, examples: Sequence[Any]) -> list[tuple[int, ...]]:
        """1 to 7, made up from the examples."""
        return [(1 + int(abs(10 * b)) % 7,) for _, b in examples]

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        assert isinstance(model, Point)
        if self.memory is not None and len(batch) > self.memory:
            raise torch.OutOfMemoryError("injected")
        point = torch.cat([model.w, model.head])
        if self.dropout:
            point = nn.functional.dropout(point, self.dropout, model.training)
        return (0.5 * batch[:, :1] * (point - batch[:, 1:]) ** 2).sum(), len(batch)

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[float]:
        assert isinstance(model, Point)
        point = torch.cat([model.w, model.head])
        return [-float((point - b).abs().mean()) for _, b in examples]

    def score(self, examples: Sequence[Any], predictions: Sequence[float]) -> Scores:
        return {"nearness": (sum(predictions), len(examples))}


@dataclass(frozen=True)
class Saved(Quadratic):
    """The same that writes its weights; with `full` only where the first of them is not positive."""

    full: bool = False

    def save_model(self, model: nn.Module, folder: Path) -> None:
        folder.mkdir(parents=True)
        if self.full and float(model.get_parameter("w")[0].detach()) > 0:
            raise OSError(28, "No space left on device")
        save_file({name: part.detach().clone() for name, part in model.named_parameters()}, folder / "w.safetensors")
