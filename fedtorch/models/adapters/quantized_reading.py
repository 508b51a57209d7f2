"""Quantises a base weight by weight while transformers reads its files, so that it is never whole in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from fedtorch.models.adapters.quantized import (
    QuantizedLinear,
    check_library,
    kept_whole,
    layers_to_quantize,
    packed_parameters,
    reserve,
)
from fedtorch.models.adapters.settings import Adapter, Quantize

_METHOD = "fedtorch"


class _Wish(QuantizationConfigMixin):
    """The word to transformers that a model's weights are to be quantised, and which are not."""

    def __init__(self, quantize: Quantize, kept: Sequence[str]) -> None:
        super().__init__(quant_method=_METHOD)
        self.quantize, self.kept = quantize, tuple(kept)


class _Quantizer(HfQuantizer):
    """Quantises every weight of a linear layer as soon as it is read; transformers asks it."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        wish: Any = self.quantization_config
        for name in layers_to_quantize(model, wish.kept):
            reserve(model.get_submodule(name), wish.quantize.kind, torch.device("meta"))
        return model

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Is it the weight of a layer that is to be quantised?"""
        owner, _, name = param_name.rpartition(".")
        return name == "weight" and isinstance(model.get_submodule(owner), QuantizedLinear)

    def get_quantize_ops(self) -> ConversionOps:
        """The operation that such a weight goes through."""
        return _Pack()

    def is_serializable(self) -> bool:
        """Such a model is written in another way (`adapters.saved`)."""
        return False

    @property
    def is_trainable(self) -> bool:
        """An adapter beside such weights is."""
        return True


class _Pack(ConversionOps):
    """A weight as it is read -> its packed numbers and scales."""

    def convert(self, input_dict: Mapping[str, Any], model: Any = None, **kwargs: Any) -> dict[str, Any]:
        """For one parameter; transformers puts each into the module under its name."""
        packed: dict[str, Any] = {}
        for name, found in input_dict.items():
            weight: Tensor = found[0] if isinstance(found, list) else found
            owner = name.rpartition(".")[0]
            module = model.get_submodule(owner)
            packed[name], packed[f"{owner}.scales"] = packed_parameters(weight, module)
            module._is_hf_initialized = True
        return packed


@contextmanager
def reading_quantized(quantize: Quantize | None, adapter: Adapter | None) -> Iterator[dict[str, Any]]:
    """Arguments of `from_pretrained`, inside the block, by which it quantises what it reads; none: nothing is.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    if quantize is None or adapter is None:
        yield {}
        return
    check_library()
    AUTO_QUANTIZER_MAPPING[_METHOD], AUTO_QUANTIZATION_CONFIG_MAPPING[_METHOD] = _Quantizer, _Wish
    try:
        yield {"quantization_config": _Wish(quantize, kept_whole(adapter))}
    finally:
        del AUTO_QUANTIZER_MAPPING[_METHOD], AUTO_QUANTIZATION_CONFIG_MAPPING[_METHOD]


def forget_wish(model: Any) -> None:
    """Take out of a model what transformers noted of how it was read: all else treats it as any model."""
    if getattr(model, "hf_quantizer", None) is None:
        return
    model.hf_quantizer.remove_quantization_config(model)
    for part in model.modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "_is_quantized"):
            del config._is_quantized
