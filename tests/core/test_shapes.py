"""Modules without values have the names, shapes and formats of those with values, and can be given room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from fedtorch.core.shapes import has_values, make_room, without_values
from fedtorch.models.auto import AnyModel


class Tied(nn.Module):
    """Two layers with one weight, one with a buffer, and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.memory = nn.Linear(3, 3), nn.Linear(3, 3), nn.LSTM(3, 4)
        self.second.weight = self.first.weight
        self.register_buffer("places", torch.arange(3))


def form(module: nn.Module) -> list[tuple[Any, ...]]:
    return [(name, p.shape, p.dtype, p.requires_grad, p.is_contiguous()) for name, p in module.named_parameters()]


def test_parameters_are_without_values_tied_ones_stay_tied_and_buffers_have_values() -> None:
    with without_values():
        module = Tied()
    assert not has_values(module) and all(parameter.is_meta for parameter in module.parameters())
    assert form(module) == form(Tied()) and module.first.weight is module.second.weight
    assert module.places.tolist() == [0, 1, 2]
    assert has_values(Tied()) and has_values(nn.ReLU())  # what is built afterwards, and what has no parameters


def test_room_makes_them_ordinary_parameters_that_compute() -> None:
    torch.manual_seed(0)
    real = Tied()
    with without_values():
        module = Tied()
    make_room(module)
    assert has_values(module) and form(module) == form(real) and module.first.weight is module.second.weight
    module.load_state_dict(real.state_dict())
    x = torch.randn(2, 3)
    assert torch.equal(module.memory(module.second(x))[0], real.memory(real.second(x))[0])


def test_an_error_inside_leaves_torch_and_transformers_as_they_were() -> None:
    import transformers.core_model_loading as reader

    held = nn.Module.register_parameter, reader._materialize_copy
    with pytest.raises(ValueError, match="inside"), without_values():
        raise ValueError("inside")
    assert held == (nn.Module.register_parameter, reader._materialize_copy)


class Ids:
    """As much of a tokenizer as a model is built with."""

    pad_token_id = eos_token_id = bos_token_id = 0

    def __len__(self) -> int:
        return 40


LORA = {"kind": "lora", "r": 2}


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"adapter": {**LORA, "base": "fp32"}},
        {"adapter": {**LORA, "base": "saved"}},
        {"adapter": {"kind": "sb", "r": 2}},
        {"adapter": LORA, "quantize": {"kind": "int8"}},
        {"adapter": LORA, "quantize": {"kind": "nf4"}},
    ],
    ids=["whole", "fp32", "saved", "sb", "int8", "nf4"],
)
def test_a_model_of_a_folder_has_the_form_that_it_has_with_values(
    keys: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    if keys:
        pytest.importorskip("peft")
    if "quantize" in keys:
        pytest.importorskip("bitsandbytes")
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).to(dtype).save_pretrained(tmp_path)
    model = AnyModel.of({"path": str(tmp_path), **keys})
    with without_values():
        bare = model.build("CausalLM", 0, Ids())  # type: ignore[arg-type]
    real = model.build("CausalLM", 0, Ids())  # type: ignore[arg-type]
    assert all(parameter.is_meta for parameter in bare.parameters()) and has_values(real)
    assert form(bare) == form(real)
    buffers = dict(real.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in bare.named_buffers())
