"""Models whose dropout is off in training too."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def without_dropout(model: Model) -> Model:
    """Set every dropout of a model to 0, in place: its layers, and the rates that attention hands to a fused kernel.

    The model's configuration, which is saved with it, stays as it is.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model
