"""What is trained beside a base of 16 bits is of 32, and is given inputs of its own kind."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


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
