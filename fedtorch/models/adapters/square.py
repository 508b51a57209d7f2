"""Of a product B·R·A beside a layer's weight only R, r × r, is trained: A and B are drawn from the run's seed (Fed-SB).

R takes part in A's place: `q.lora_A.default` computes R·A x, its parameters are `fixed` (A) and `square` (R), and who
asks for its weight gets R·A. So for everyone else, peft and files among them, it is an adapter like others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import generator_for
from fedtorch.models.adapters.added import NAME
from fedtorch.models.adapters.settings import KEY


class SquareFactor(nn.Module):
    """x → R·A x."""

    def __init__(self, fixed: Tensor) -> None:
        """fixed: A, shape (r, d_in)."""
        super().__init__()
        self.fixed = nn.Parameter(fixed, requires_grad=False)
        self.square = nn.Parameter(torch.zeros(len(fixed), len(fixed), dtype=fixed.dtype))

    @property
    def weight(self) -> Tensor:
        """R·A, shape (r, d_in)."""
        return self.square @ self.fixed

    def forward(self, x: Tensor) -> Tensor:
        """As a linear layer of `weight`, so that it has the bits of one that was read from a file."""
        return nn.functional.linear(x, self.weight)


@torch.no_grad()
def make_square(layers: Mapping[str, Any], seed: int) -> None:
    """Put an R, at first 0, between the factors of every layer, which are drawn anew from `seed` and fixed.

    Uniform and of variance 1/d, d their longer side: rows of A and columns of B are of length 1 on average, and nearly
    orthogonal. (Sums of a QR would differ between kinds of processors, and all ranks must draw the same bits.)

    Raises:
        ConfigError: a layer is no matrix of inputs and outputs.
    """
    draw = generator_for(seed, "adapter", "square")
    for name, layer in layers.items():
        if NAME not in layer.lora_A:
            raise ConfigError(f"{KEY}.kind is sb, but `{name}` among {KEY}.targets is no linear layer; leave it out")
        a, b = layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
        for factor, width in ((a, a.shape[1]), (b, b.shape[0])):
            factor.copy_((2 * torch.rand(factor.shape, generator=draw) - 1) * math.sqrt(3 / width))
        layer.lora_A[NAME] = SquareFactor(a.detach())
        b.requires_grad_(False)


def made_plain(layers: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    """R·A in place of both in the tensors of a file, which are changed in place."""
    for name, layer in layers.items():
        if NAME in layer.lora_A and isinstance(factor := layer.lora_A[NAME], SquareFactor):
            for part in ("fixed", "square"):
                del tensors[f"{name}.lora_A.{part}"]
            tensors[f"{name}.lora_A.weight"] = factor.weight.detach()
