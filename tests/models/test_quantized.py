"""A base in four or eight bits: its numbers, what its layers compute, how it is read, written and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import fedtorch
from fedtorch.core.errors import ConfigError
from fedtorch.models.adapters import quantized as few
from fedtorch.models.adapters.lora import add_adapter, lora_layers, merged
from fedtorch.models.adapters.quantized import (
    Form,
    QuantizedLinear,
    check_library,
    dequantized,
    layers_to_quantize,
    quantization_of,
    quantize_in_place,
    quantized,
    room_for,
)
from fedtorch.models.adapters.saved import BASE, save_adapted, saved_keys
from fedtorch.models.adapters.settings import Adapter, Quantize
from fedtorch.models.auto import AnyModel, Head
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.models.pretrained import save_model
from fedtorch.models.saved import load_model
from fedtorch.models.t5 import T5Model
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.text.model_files import load_from
from tests.models.test_adapters import logits, moved, trained

MODELS: dict[str, tuple[dict[str, Any], Head]] = {
    "bert": ({"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
             "SequenceClassification"),
    "gpt2": ({"n_layer": 1, "n_embd": 16, "n_head": 2}, "CausalLM"),
    "t5": ({"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}, "Seq2SeqLM"),
    "distilbert": ({"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}, "TokenClassification"),
}  # fmt: skip
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
       1.0)  # fmt: skip
"""QLoRA, appendix E."""
KINDS = ("nf4", "int8")
SHAPES = ((10, 36), (7, 9), (1, 1), (128, 64), (3, 200))


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    check_library()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("words")
    train_subwords(["one two three"], folder, size=262)
    return AutoTokenizer.from_pretrained(folder)


def drawn(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def build(kind: str, tokenizer: Any, /, quantize: str | None = None, **keys: Any) -> Any:
    sizes, head = MODELS[kind]
    settings = {"num_labels": 3} if head.endswith("Classification") else {}
    start = {} if "path" in keys else {"random": kind, **sizes}
    asked = {} if quantize is None else {"quantize": {"kind": quantize}}
    return AnyModel.of({**start, "adapter": {"r": 2}, **asked, **keys}).build(head, 7, tokenizer, **settings)


@pytest.mark.parametrize("shape", SHAPES)
def test_nf4_is_the_nearest_of_its_sixteen_numbers_times_the_largest_of_64(shape: tuple[int, int]) -> None:
    weight, table = drawn(shape), torch.tensor(NF4)
    packed, scales = quantized(weight, "nf4")
    whole = dequantized(packed, scales, Form("nf4", shape), torch.float32)
    for block, got, scale in zip(
        weight.reshape(-1).split(64), whole.reshape(-1).split(64), scales.tolist(), strict=True
    ):
        assert scale == float(block.abs().max())
        nearest = (block[:, None] / scale - table).abs().argmin(1)
        assert torch.equal(got, table[nearest] * scale)


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_is_the_nearest_of_255_multiples_of_a_rows_scale(shape: tuple[int, int]) -> None:
    weight = drawn(shape)
    packed, scales = quantized(weight, "int8")
    largest = weight.abs().amax(1)
    assert packed.shape == shape and bool((scales >= largest / 127).all())
    assert bool((scales <= largest / 127 * (1 + 2**-16)).all())
    whole = dequantized(packed, scales, Form("int8", shape), torch.float32)
    assert bool(((weight - whole).abs() <= scales[:, None] * 0.5001).all())
    assert packed.abs().amax(1).tolist() == [127] * shape[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_dequantised_weight_is_quantised_to_the_same_bits(kind: str, shape: tuple[int, int]) -> None:
    form, parts = Form(kind, shape), quantized(drawn(shape), kind)
    again = quantized(dequantized(*parts, form, torch.float32), kind)
    assert all(torch.equal(one, other) for one, other in zip(parts, again, strict=True))
    room = room_for(form, torch.device("meta"))
    assert [(part.shape, part.dtype) for part in parts] == [(part.shape, part.dtype) for part in room]


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_change_no_bit_and_zeros_stay_zeros(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = drawn((5, 96))
    weight[1:3] = 0
    whole = quantized(weight, kind)
    monkeypatch.setattr(few, "_CHUNK", 64)
    parts = quantized(weight, kind)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
    assert not dequantized(*whole, Form(kind, (5, 96)), torch.float32)[1:3].any()
    narrow = quantized(weight.bfloat16(), kind)
    wide = quantized(weight.bfloat16().float(), kind)
    assert all(torch.equal(one, other) for one, other in zip(narrow, wide, strict=True))


def both(kind: str, has_bias: bool = True) -> tuple[nn.Linear, QuantizedLinear]:
    """A plain layer with a dequantised weight, and the quantised one."""
    layer: Any = nn.Linear(48, 10, bias=has_bias).requires_grad_(False)
    weight = layer.weight.detach().clone()
    few.reserve(layer, kind, torch.device("meta"))
    layer.weight, layer.scales = few.packed_parameters(weight, layer)
    plain: Any = few.plain_layer(layer)
    assert type(plain) is nn.Linear
    return plain, layer


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_and_gives_gradients_as_a_plain_one_of_the_dequantised_weight(kind: str) -> None:
    plain, layer = both(kind)
    for dtype in (torch.float32, torch.bfloat16):
        found = []
        for each in (plain.to(dtype), layer):
            x = drawn((6, 48), 1).to(dtype).requires_grad_()
            out = each(x)
            out.float().square().sum().backward()
            assert x.grad is not None and x.grad.dtype == out.dtype == dtype
            found.append((out.detach(), x.grad))
        assert torch.equal(found[0][0], found[1][0])
        if dtype == torch.float32:
            assert torch.equal(found[0][1], found[1][1])
        else:  # the plain one multiplies in bf16
            assert (found[0][1] - found[1][1]).norm() < 0.01 * found[0][1].norm()


@pytest.mark.parametrize("kind", KINDS)
def test_inside_autocast_a_layer_computes_in_its_number_format(kind: str) -> None:
    plain, layer = both(kind)
    with torch.autocast("cpu", torch.bfloat16):
        one, other = plain(drawn((6, 48))), layer(drawn((6, 48)))
    assert one.dtype == other.dtype == torch.bfloat16 and torch.equal(one, other)


def test_gradients_of_gradients_and_of_rows_together_are_those_of_a_plain_layer() -> None:
    plain, layer = both("nf4", has_bias=False)
    rows, tangent = drawn((5, 48), 2), drawn((5, 48), 3)

    def slope(each: nn.Module) -> torch.Tensor:
        x = rows.clone().requires_grad_()
        (first,) = torch.autograd.grad(each(x).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return second

    torch.testing.assert_close(slope(plain), slope(layer))

    def together(each: nn.Module) -> torch.Tensor:
        return vmap(grad(lambda row: each(row).pow(2).sum()))(rows)

    torch.testing.assert_close(together(plain), together(layer))

    def forwards(each: nn.Module) -> torch.Tensor:
        with torch.autograd.forward_ad.dual_level():
            out = each(torch.autograd.forward_ad.make_dual(rows, tangent))
            found: torch.Tensor = torch.autograd.forward_ad.unpack_dual(out).tangent
            return found

    torch.testing.assert_close(forwards(plain), forwards(layer))


@pytest.mark.parametrize("kind", MODELS)
def test_linear_layers_of_the_base_are_quantised_and_nothing_else(kind: str, tokenizer: Any) -> None:
    plain, model = build(kind, tokenizer), build(kind, tokenizer, "nf4")
    found = {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    odd = {name for name, one in model.named_parameters() if not one.is_floating_point()}
    assert odd == {f"{name}.weight" for name in found} and quantization_of(model) == Quantize("nf4")
    assert quantization_of(plain) is None
    words = ("lora_", "classifier", "pooler", "lm_head", "wo", "embed", "wte", "wpe", "shared")
    assert found and not [name for name in found if any(word in name.split(".") for word in words)]
    assert len(found) == {"bert": 6, "gpt2": 4, "t5": 14, "distilbert": 6}[kind]
    same = [name for name, one in plain.named_parameters() if f"{name.rpartition('.')[0]}" not in found]
    assert all(torch.equal(plain.get_parameter(name), model.get_parameter(name)) for name in same)
    assert trained(plain) == trained(model)
    assert [n for n in same if "lora_A" in n] == [n for n in trained(model) if "lora_A" in n]


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("few_bits", KINDS)
def test_a_base_that_is_read_is_that_which_is_quantised_when_it_is_built(
    kind: str, few_bits: str, tokenizer: Any, tmp_path: Path
) -> None:
    sizes, head = MODELS[kind]
    settings = {"num_labels": 3} if head.endswith("Classification") else {}
    start = AnyModel.of({"random": kind, **sizes}).build(head, 7, tokenizer, **settings)
    save_model(start, tmp_path)
    read = build(kind, tokenizer, few_bits, path=str(tmp_path))
    made = build(kind, tokenizer, few_bits)
    one, other = read.state_dict(), made.state_dict()
    assert {name for name in one if ".modules_to_save." not in name} <= {*other}
    assert all(torch.equal(one[name], other[name]) for name in one if name in other)
    assert torch.equal(logits(read.eval()), logits(made.eval()))
    assert not hasattr(read.config, "quantization_config") and not hasattr(read, "hf_quantizer")
    wide = build(kind, tokenizer, few_bits, path=str(tmp_path), adapter={"r": 2, "base": "saved"})
    assert torch.equal(logits(wide.eval()), logits(read))


@pytest.mark.parametrize(
    "section", [GPT2Model(width=16, layers=1, heads=2), T5Model(d_model=16, d_kv=8, d_ff=32, num_layers=1),
                EncoderDecoder(d_model=16, num_heads=2, d_ff=32, num_layers=1)]
)  # fmt: skip
def test_the_papers_models_are_quantised_too_from_folders_and_at_random(
    section: Any, tokenizer: Any, tmp_path: Path
) -> None:
    save_model(section.build(3, tokenizer), tmp_path)
    asked = {"adapter": Adapter(r=2), "quantize": Quantize("int8")}
    read = replace(section, name=str(tmp_path), **asked).build(3, tokenizer)
    made = replace(section, **asked).build(3, tokenizer)
    assert quantization_of(read) == quantization_of(made) == Quantize("int8")
    one, other = read.state_dict(), made.state_dict()
    assert {*one} == {*other} and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("few_bits", KINDS)
def test_what_is_saved_loads_with_the_bits_that_were_evaluated(
    kind: str, few_bits: str, tokenizer: Any, tmp_path: Path
) -> None:
    model = moved(build(kind, tokenizer, few_bits))
    expected = logits(model)
    save_adapted(model, tmp_path)
    assert torch.equal(logits(model), expected) and quantization_of(model) == Quantize(few_bits)  # type: ignore[arg-type]
    assert saved_keys(tmp_path)["quantize"] == {"kind": few_bits}
    base = json.loads((tmp_path / BASE / "config.json").read_text())
    assert "quantization_config" not in base and "fedtorch_quantize" not in base
    loaded = load_model(tmp_path)
    assert quantization_of(loaded) == Quantize(few_bits) and torch.equal(logits(loaded), expected)  # type: ignore[arg-type]
    keys = saved_keys(tmp_path)
    again = build(kind, tokenizer, **{**keys, "quantize": few_bits}).eval()
    assert torch.equal(logits(again), expected)


@pytest.mark.parametrize("kind", MODELS)
def test_a_merged_model_is_plain_and_computes_the_same_up_to_rounding(kind: str, tokenizer: Any) -> None:
    model = moved(build(kind, tokenizer, "nf4"))
    expected = logits(model)
    with merged(model):
        assert quantization_of(model) is None and not lora_layers(model)
        assert all(one.dtype == torch.float32 for one in model.parameters())
        torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits(model), expected)


def test_transformers_own_loading_in_four_bits_has_the_same_base(tokenizer: Any, tmp_path: Path) -> None:
    """As docs/adapters.md says for those who load a run's model without this package."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=262)
    torch.manual_seed(0)
    save_model(LlamaForCausalLM(config), tmp_path / "base")
    keys = {"path": str(tmp_path / "base"), "adapter": {"r": 2}, "quantize": {"kind": "nf4"}}
    model = moved(AnyModel.of(keys).build("CausalLM", 7, tokenizer))
    save_adapted(model, tmp_path / "run")
    asked = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "run", quantization_config=asked, dtype=torch.float32, device_map={"": "cpu"}
    )
    packed = {name: one for name, one in model.named_parameters() if one.dtype == torch.uint8}
    assert len(packed) == 14
    assert all(torch.equal(theirs.get_parameter(name).data.view(one.shape), one) for name, one in packed.items())
    theirs.train()  # in eval mode bitsandbytes 0.50 rounds scales and inputs to bf16 on CPUs that have it
    torch.testing.assert_close(logits(theirs), logits(model), rtol=1e-4, atol=1e-4)  # other products


def test_a_module_that_is_trained_whole_is_not_quantised(tokenizer: Any, tmp_path: Path) -> None:
    model = moved(build("gpt2", tokenizer, "nf4", adapter={"r": 2, "save": ["c_fc"]}))
    names = [name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    assert len(names) == 3 and not [name for name in names if "c_fc" in name]
    save_adapted(model, tmp_path)
    assert torch.equal(logits(load_model(tmp_path)), logits(model))


def test_layers_within_what_is_left_out_are_left_out() -> None:
    class Tiny(nn.Module):
        base_model_prefix = "base"
        all_tied_weights_keys: dict[str, str] = {}
        _keep_in_fp32_modules = None

        def __init__(self) -> None:
            super().__init__()
            self.base = nn.ModuleDict({"one": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "two": nn.Linear(2, 2)})
            self.head = nn.Linear(2, 2)

        def get_output_embeddings(self) -> None:
            return None

    assert layers_to_quantize(Tiny()) == ["base.one.0", "base.one.1", "base.two"]
    assert layers_to_quantize(Tiny(), ["one"]) == ["base.two"]
    assert layers_to_quantize(Tiny(), ["one.1"]) == ["base.one.0", "base.two"]


def test_what_cannot_be_quantised_is_refused(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"task\.model\.quantize is set \(nf4\) but task\.model\.adapter is not"):
        AnyModel.of({"random": "gpt2", "quantize": {}})
    with pytest.raises(ConfigError, match=r"task\.model\.quantize is set \(int8\) but"):
        T5Model(quantize=Quantize("int8"))
    with pytest.raises(ConfigError, match=r"task\.model\.quantize\.kind is 'fp4'"):
        AnyModel.of({"random": "gpt2", "adapter": {}, "quantize": {"kind": "fp4"}})
    with pytest.raises(ConfigError, match=r"unknown key task\.model\.quantize\.bits; there are kind"):
        Quantize.of({"bits": 4})
    with pytest.raises(ConfigError, match=r"task\.model\.quantize is 'nf4' but should be a mapping"):
        Quantize.of("nf4")
    save_model(build("gpt2", tokenizer), tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(
        ConfigError, match=r"has a quantization_config \(bitsandbytes\): its weights are quantised alre"
    ):
        load_from(AutoModelForCausalLM, tmp_path)
    monkeypatch.setattr("fedtorch.core.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs bitsandbytes.*fedtorch-nlp\[quantize\]"):
        build("gpt2", tokenizer, "nf4")


IMPORTED = """
import sys, fedtorch.core.devices
assert "bitsandbytes" not in sys.modules
__import__(sys.argv[1])
import kernels
print("bitsandbytes" in sys.modules, kernels.__file__)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "importer",
    ["bitsandbytes", *(pytest.param(name, marks=pytest.mark.slow) for name in ("peft", "transformers.optimization"))],
)
def test_the_library_is_loaded_without_asking_for_kernels_elsewhere(importer: str, tmp_path: Path) -> None:
    """Whoever imports it, a package of that name is not asked, and afterwards it is what it was."""
    (tmp_path / "kernels.py").write_text("def get_kernel(*_, **__):\n    raise SystemExit('fetched')\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(fedtorch.__file__).parents[1]}"}
    words = [sys.executable, "-c", IMPORTED, importer]
    ended = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0 and "kernels" not in ended.stderr, ended.stderr
    assert ended.stdout == f"True {tmp_path / 'kernels.py'}\n"


def test_a_model_that_is_quantised_twice_stays(tokenizer: Any) -> None:
    model = AnyModel.of({"random": "gpt2", **MODELS["gpt2"][0]}).build("CausalLM", 7, tokenizer)
    quantize_in_place(model, Quantize("nf4"), Adapter())
    before = {name: one.clone() for name, one in model.state_dict().items()}
    quantize_in_place(model, Quantize("int8"), Adapter())
    after = model.state_dict()
    assert {*before} == {*after} and all(torch.equal(after[name], one) for name, one in before.items())
    add_adapter(model, Adapter(r=2), 1)
    assert all(".lora_" in name for name in trained(model))
