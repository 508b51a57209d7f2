"""Trains fp32 factors beside a base of 16 bits: each is given inputs of its own kind; gradients pass the base."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedtorch.models.adapters.settings import Adapter


def dtype_of(adapter: Adapter | None) -> torch.dtype | Literal["auto"]:
    """Number format of a base's weights as they are read from its files (`Adapter.base`)."""
    return "auto" if adapter is not None and adapter.base == "saved" else torch.float32


def score_in_fp32(model: Any) -> None:
    """Let a base of 16 bits give its scores of tokens as fp32, for a loss to be taken of them."""
    if (head := model.get_output_embeddings()) is not None and head.weight.dtype.itemsize < 4:
        head.register_forward_hook(lambda _, inputs, logits: logits.float())


def train_in_fp32(model: nn.Module) -> None:
    """Make what is trained fp32; a module that is trained whole (a head) then takes what the base computes as fp32."""
    for module in model.modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        if own and any(parameter.dtype.itemsize < 4 for parameter in own):
            module.float()
            module.register_forward_pre_hook(_widened)


def _widened(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    wide = next(module.parameters()).dtype
    return tuple(each.to(wide) if isinstance(each, Tensor) and each.is_floating_point() else each for each in inputs)


def pass_gradients_quickly(model: nn.Module) -> None:
    """Let gradients pass linear layers of 16 bits that are not trained in fp32, where a CPU computes them.

    On one without arithmetic for bf16 torch 2.13 needs 1.7 s for grad · W of 20 rows and a weight of 5632 × 2048, where
    widening W and multiplying take 0.08 s (*measured*). What the layer computes forwards keeps its bits.
    """
    for module in model.modules():
        # exactly this class: others compute something else
        if type(module) is nn.Linear and module.weight.dtype.itemsize < 4:
            if not any(parameter.requires_grad for parameter in module.parameters()):
                module.__class__ = FixedLinear


class FixedLinear(nn.Linear):
    """A linear layer that is not trained."""

    def forward(self, input: Tensor) -> Tensor:
        """As the layer it was."""
        if input.device.type != "cpu" or not input.requires_grad:
            return super().forward(input)
        passed: Tensor = _Passed.apply(input, self.weight, self.bias)
        return passed


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return (grads[0].float() @ weight.float()).to(grads[0].dtype), None, None
