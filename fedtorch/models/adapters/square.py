"""Trains only R, r × r, of a product B·R·A beside a layer's weight: A and B are fixed (Fed-SB).

They are drawn from the run's seed, or fitted to the gradient that public rows give.

R takes part in A's place: `q.lora_A.default` computes R·A x, its parameters are `fixed` (A) and `square` (R), and who
asks for its weight gets R·A. So for everyone else, peft and files among them, it is an adapter like others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
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


@torch.no_grad()
def fit_square(layers: Mapping[str, Any], gradients: Mapping[str, Tensor]) -> None:
    """Fixed factors of every layer from the gradient of its weight, shape (d_out, d_in): G = U S Vᵀ, A = V_rᵀ, B = U_r.

    So B·(Bᵀ G Aᵀ)·A, all that R can follow of G, is the best of rank r (Eckart–Young). R stays 0.

    Raises:
        ConfigError: a gradient is not finite, or has fewer than r rows or columns.
    """
    for name, layer in layers.items():
        gradient, rank = gradients[name].double(), layer.r[NAME]
        if rank > min(gradient.shape) or not bool(gradient.isfinite().all()):
            why = "is not finite" if rank <= min(gradient.shape) else f"is {tuple(gradient.shape)}, less than {KEY}.r"
            raise ConfigError(f"{KEY}.public_rows is set, but the gradient of `{name}` {why}; remove the key")
        u, _, vt = torch.linalg.svd(gradient, full_matrices=False)
        layer.lora_A[NAME].fixed.copy_(vt[:rank])
        layer.lora_B[NAME].weight.copy_(u[:, :rank])


@contextmanager
def weight_gradients(layers: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Inside the block every backward pass adds to the gradients of the layers' weights, (d_out, d_in) in fp32.

    As if B·R·A were the weight itself: from what goes into a layer and what comes back, whatever holds its base.
    """
    found = {
        name: torch.zeros(layer.lora_B[NAME].weight.shape[0], layer.lora_A[NAME].fixed.shape[1])
        for name, layer in layers.items()
    }

    def watch(name: str, layer: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x = inputs[0].detach().flatten(0, -2).float()

        def add(gradient: Tensor) -> None:
            found[name] += gradient.flatten(0, -2).float().T @ x

        output.register_hook(add)

    handles = [layer.register_forward_hook(partial(watch, name)) for name, layer in layers.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def made_plain(layers: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
    """R·A in place of both in the tensors of a file, which are changed in place."""
    for name, layer in layers.items():
        if NAME in layer.lora_A and isinstance(factor := layer.lora_A[NAME], SquareFactor):
            for part in ("fixed", "square"):
                del tensors[f"{name}.lora_A.{part}"]
            tensors[f"{name}.lora_A.weight"] = factor.weight.detach()
