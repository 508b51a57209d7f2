"""Products that a run has added to a model's base: a second one beside each layer, in fp32 and never trained.

The base itself stays as it is: in 16 bits small sums would be lost, and its memory may be that of a file which other
processes have too. The factors are plain tensors of the layer, no parameters: their rank changes from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

NAME = "default"
"""Of the one adapter in a model, as it stands in the names of its parameters."""
_FACTORS = "added_factors"  # of a layer that has some: (left, right)


def scale_of(layer: Any, rank: int | None = None) -> float:
    """s of a layer's product, for factors of `rank`; None: of those that are there."""
    r, alpha = rank or layer.r[NAME], layer.lora_alpha[NAME]
    return float(alpha / math.sqrt(r) if layer.use_rslora[NAME] else alpha / r)


def set_added(layers: Mapping[str, Any], factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Beside each layer that is named stands s·left·right from now on, with the s of its own factors.

    factors: layer -> left, shape (d_out, k), and right, (k, d_in), where the layer's weight is; they are not copied.
    """
    for name, (left, right) in factors.items():
        layer = layers[name]
        if not hasattr(layer, _FACTORS):
            layer.register_forward_hook(_add)
        setattr(layer, _FACTORS, (left, right))


def added_to(layer: Any) -> tuple[Tensor, Tensor] | None:
    """(left, right) of what stands beside a layer; None: nothing."""
    factors = getattr(layer, _FACTORS, None)
    return factors if factors is not None and len(factors[1]) else None


def _add(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    if (factors := added_to(layer)) is None:
        return output
    left, right = factors
    product = nn.functional.linear(nn.functional.linear(inputs[0].to(right.dtype), right), left)
    return output + (product * scale_of(layer)).to(output.dtype)


@torch.no_grad()
def delta_of(layer: Any) -> Tensor:
    """Sum of all factors' products beside a layer, fp32, in the weight's shape."""
    whole: Tensor = layer.get_delta_weight(NAME).float()
    if (factors := added_to(layer)) is not None:
        product = factors[0].float() @ factors[1].float() * scale_of(layer)
        whole = whole + (product.T if layer.fan_in_fan_out else product)
    return whole


def put_together(layers: Mapping[str, Any], tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Make one adapter of the factors and of what was added, for those who read files; both are changed in place.

    tensors: `<layer>.lora_A.weight` and so on; config: as in `adapter_config.json`. The added factors stand behind the
    others, or alone where each B is 0. Nothing changes where nothing was added.
    """
    if not any(added_to(layer) for layer in layers.values()):
        return
    scales = {name: scale_of(layer) for name, layer in layers.items()}
    ranks = {name: layer.r[NAME] for name, layer in layers.items()}
    linear = {name: layer for name, layer in layers.items() if NAME in layer.lora_A}  # no embeddings
    is_alone = not any(tensors[f"{name}.lora_B.weight"].any() for name in linear)
    for name, layer in linear.items():
        a, b = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
        left, right = added_to(layer) or (tensors[b][:, :0], tensors[a][:0])
        tensors[a] = right if is_alone else torch.cat([tensors[a], right])
        tensors[b] = left if is_alone else torch.cat([tensors[b], left], 1)
        ranks[name] = len(tensors[a])
    largest = max(ranks.values())
    config.update(r=largest, use_rslora=False, rank_pattern={}, alpha_pattern={})
    config["lora_alpha"] = next(iter(scales.values())) * largest
    if len({*ranks.values()}) > 1 or len({*scales.values()}) > 1:
        config["rank_pattern"] = ranks
        config["alpha_pattern"] = {name: scales[name] * rank for name, rank in ranks.items()}
