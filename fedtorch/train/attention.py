"""The kernel that computes attention in models of transformers, chosen by `engine.attention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.train.blocks import outermost

AUTO, FLASH = "auto", "flash_attention_2"
_MARKS = {"sdpa": "_supports_sdpa", FLASH: "_supports_flash_attn"}
"""Choice -> what the class of a model says of it; all classes have `eager`."""


def models_of_transformers(module: nn.Module) -> list[Any]:
    """The outermost models of transformers inside `module`."""
    from transformers import PreTrainedModel  # takes 4 s, of every rank's start

    return outermost(module, lambda part: isinstance(part, PreTrainedModel))


def use_attention(module: nn.Module, choice: str, device: torch.device) -> None:
    """Make all models of transformers in `module` compute attention so; `auto` leaves them as they came.

    Flash attention has kernels for GPUs alone: on a CPU, where a run that was trained with it is looked at, nothing
    changes.

    Raises:
        ConfigError: a model's class does not have it, the module has none of transformers' models, or a part of it
            needs masks.
    """
    if choice == AUTO or (choice == FLASH and not devices.is_gpu(device)):
        return
    if choice == FLASH and any(getattr(part, "needs_whole_mask", False) for part in module.modules()):
        raise ConfigError(
            f"engine.attention is {FLASH} but the model has attention of its own that needs whole masks (PAL patches); "
            "set engine.attention to sdpa"
        )
    models = models_of_transformers(module)
    for model in models:
        if not getattr(model, _MARKS.get(choice, ""), True):
            raise ConfigError(
                f"engine.attention is {choice}, which transformers has not for {type(model).__name__}; set it to "
                "eager or auto"
            )
        model.set_attn_implementation(choice)
    # some classes warn and go on as before
    left = [model for model in models if model.config._attn_implementation != choice]
    if left or not models:
        what = (
            f"{type(left[0]).__name__} does not let itself be changed" if left else "no model of transformers is in it"
        )
        raise ConfigError(f"engine.attention is {choice} but {what}; set engine.attention to auto")
