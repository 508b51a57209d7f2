"""Adapters in a model: what is trained, how it is drawn, written, read, added to the base, and what is refused."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.weights import Partition
from fedtorch.models.adapters.lora import add_adapter, add_to_base, lora_layers, merged, removed, save_adapter
from fedtorch.models.adapters.precision import FixedLinear, pass_gradients_quickly
from fedtorch.models.adapters.saved import saved_keys
from fedtorch.models.adapters.settings import Adapter
from fedtorch.models.adapters.square import fit_square
from fedtorch.models.auto import AnyModel, Head
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.models.pretrained import save_model
from fedtorch.models.saved import load_saved
from fedtorch.models.t5 import T5Model, save_pretrained
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.train.engine import Engine

MODELS: dict[str, tuple[dict[str, Any], Head]] = {
    "bert": ({"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
             "SequenceClassification"),
    "gpt2": ({"n_layer": 1, "n_embd": 16, "n_head": 2}, "CausalLM"),
    "t5": ({"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}, "Seq2SeqLM"),
    "distilbert": ({"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}, "TokenClassification"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreTrainedTokenizerBase]:
    folder = tmp_path_factory.mktemp("words")
    train_subwords(["one two three"], folder, size=262)
    yield AutoTokenizer.from_pretrained(folder)


def build(kind: str, tokenizer: PreTrainedTokenizerBase, seed: int = 7, /, **adapter: Any) -> Any:
    sizes, head = MODELS[kind]
    settings = {"num_labels": 3} if head.endswith("Classification") else {}
    keys = {"random": kind, **sizes, **({"adapter": adapter} if adapter else {})}
    return AnyModel.of(keys).build(head, seed, tokenizer, **settings)


def trained(model: Any) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def moved(model: Any, seed: int = 1) -> Any:
    """All that is trained, somewhere else."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) / 4)
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    ids = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    with torch.no_grad():
        found: torch.Tensor = model(**inputs).logits
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_only_factors_and_new_heads_are_trained_and_the_model_computes_what_it_did(kind: str, tokenizer: Any) -> None:
    plain, model = build(kind, tokenizer).eval(), build(kind, tokenizer, r=2).eval()
    assert type(model) is type(plain) and torch.equal(logits(plain), logits(model))
    heads = {"bert": ["classifier.modules_to_save.default.weight", "classifier.modules_to_save.default.bias"]}
    heads["distilbert"] = heads["bert"]
    rest = [name for name in trained(model) if ".lora_A." not in name and ".lora_B." not in name]
    assert rest == heads.get(kind, []) and len(trained(model)) > len(rest)


def test_factors_are_drawn_from_the_seed_and_nothing_else(tokenizer: Any) -> None:
    one, same, other = (build("gpt2", tokenizer, seed, r=2) for seed in (7, 7, 8))
    torch.manual_seed(0)
    (name,) = (name for name in trained(one) if "lora_A" in name)
    assert torch.equal(one.get_parameter(name), same.get_parameter(name))
    assert not torch.equal(one.get_parameter(name), other.get_parameter(name))
    assert not one.get_parameter(name.replace("lora_A", "lora_B")).any()


def test_scales_are_2_unless_said_otherwise(tokenizer: Any) -> None:
    """alpha 16 over r 8."""
    model = build("gpt2", tokenizer)
    add_adapter(model, Adapter(), seed=1)
    (layer,) = lora_layers(model).values()
    assert len(layer.lora_A["default"].weight) == 8 and layer.scaling["default"] == 2.0


def test_public_rows_of_another_kind_than_sb_are_refused() -> None:
    with pytest.raises(ConfigError, match="public_rows is 'x', to which kind sb alone fits its factors"):
        Adapter(public_rows="x")
    assert Adapter(kind="sb", public_rows="x").public_rows == "x"


def test_scales_are_alpha_over_r_or_over_its_root(tokenizer: Any) -> None:
    found = []
    for r, rslora in ((4, False), (8, False), (4, True), (8, True)):
        model = build("gpt2", tokenizer, r=r, alpha=16, rslora=rslora)
        found += [round(layer.scaling["default"], 6) for layer in lora_layers(model).values()]
    assert found == [4.0, 2.0, 8.0, 5.656854]


def test_conv1d_is_told_to_peft(tokenizer: Any) -> None:
    """GPT-2 holds its matrices transposed."""
    assert build("gpt2", tokenizer, r=2).peft_config["default"].fan_in_fan_out
    assert not build("bert", tokenizer, r=2).peft_config["default"].fan_in_fan_out


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_written_is_what_peft_reads_and_the_sum_is_close(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    model = moved(build(kind, tokenizer, r=2, targets="all-linear"))
    save_adapter(model, tmp_path / "adapter")
    with removed(model):
        save_model(model, tmp_path / "base")
    loaded = PeftModel.from_pretrained(type(model).from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded), logits(model))
    with merged(model):
        assert not any("lora" in name for name, _ in model.named_parameters())
        assert (logits(model) - logits(loaded)).abs().max() < 1e-5
        save_model(model, tmp_path / "merged")
        whole = type(model).from_pretrained(tmp_path / "merged").eval()
        assert torch.equal(logits(whole), logits(model))
    assert torch.equal(logits(loaded), logits(model))  # put back


def test_the_file_has_factors_alone_without_names_of_adapters(tokenizer: Any, tmp_path: Path) -> None:
    """Also where the vocabulary is not that of the base's folder, at which peft would add all embeddings."""
    small = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_layer=1, n_embd=16, n_head=2, n_positions=8))
    save_model(small, tmp_path / "base")
    small.resize_token_embeddings(30)
    add_adapter(small, Adapter(r=2), 0, base=str(tmp_path / "base"))
    save_adapter(small, tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    name = "base_model.model.transformer.h.0.attn.c_attn.lora_{}.weight"
    assert {key: tuple(t.shape) for key, t in tensors.items()} == {name.format("A"): (2, 16), name.format("B"): (48, 2)}


def test_training_starts_from_an_adapter_that_is_there(tokenizer: Any, tmp_path: Path) -> None:
    model = moved(build("bert", tokenizer, r=3, alpha=5, rslora=True))
    save_adapter(model, tmp_path)
    again = build("bert", tokenizer, path=str(tmp_path)).eval()
    assert trained(again) == trained(model) and torch.equal(logits(again), logits(model))
    with pytest.raises(ConfigError, match="which does not fit the model"):
        build("distilbert", tokenizer, path=str(tmp_path))


def test_the_same_as_peft_itself(tokenizer: Any) -> None:
    """Gradients of an injected adapter are those of `get_peft_model`."""
    model, base = build("gpt2", tokenizer, r=2, alpha=8), build("gpt2", tokenizer)
    theirs = get_peft_model(base, LoraConfig(r=2, lora_alpha=8, fan_in_fan_out=True, target_modules=["c_attn"]))
    ids = torch.tensor([[5, 6, 7, 8]])
    for name, value in dict(moved(model).named_parameters()).items():
        theirs.get_base_model().get_parameter(name).data.copy_(value.data)
    for each in (model, theirs.eval()):
        each(input_ids=ids, labels=ids).loss.backward()
    for name in trained(model):
        assert torch.equal(model.get_parameter(name).grad, theirs.get_base_model().get_parameter(name).grad)


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "bert"])  # Conv1D and Linear, of square matrices and others
def test_what_was_added_to_the_base_is_computed_summed_and_written(
    kind: str, rslora: bool, tokenizer: Any, tmp_path: Path
) -> None:
    """Against a dense sum in the base's own weights; an exported adapter has all factors."""
    model = moved(build(kind, tokenizer, r=2, alpha=6, rslora=rslora, targets="all-linear"))
    dense = moved(build(kind, tokenizer, r=2, alpha=6, rslora=rslora, targets="all-linear"))
    scale, draw = 6 / 2**0.5 if rslora else 3.0, torch.Generator().manual_seed(5)
    save_adapter(model, tmp_path / "without")
    for rank in (3, 5):  # later factors take the place of earlier ones
        factors = {}
        for name, layer in lora_layers(model).items():
            d_out, d_in = layer.lora_B["default"].weight.shape[0], layer.lora_A["default"].weight.shape[1]
            factors[name] = (torch.randn(d_out, rank, generator=draw) / 4, torch.randn(rank, d_in, generator=draw) / 4)
        add_to_base(model, factors)
    for name, (left, right) in factors.items():
        layer = lora_layers(dense)[name]
        product = scale * (left.double() @ right.double())
        weight = layer.base_layer.weight
        weight.data = (weight.double() + (product.T if kind == "gpt2" else product)).float()
    assert (logits(model) - logits(dense)).abs().max() < 1e-5
    with merged(model):
        assert (logits(model) - logits(dense)).abs().max() < 1e-5
    save_adapter(model, tmp_path / "adapter")
    with removed(model):
        save_model(model, tmp_path / "base")
    for b_is_zero in (False, True):
        loaded = PeftModel.from_pretrained(type(model).from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
        assert (logits(loaded) - logits(model)).abs().max() < 1e-5
        assert loaded.peft_config["default"].r == (5 if b_is_zero else 7)
        for layer in lora_layers(model).values():
            layer.lora_B["default"].weight.data.zero_()
        save_adapter(model, tmp_path / "adapter")
    add_to_base(model, {name: (left[:, :0], right[:0]) for name, (left, right) in factors.items()})
    without = build(kind, tokenizer, path=str(tmp_path / "without"))
    for layer in lora_layers(without).values():
        layer.lora_B["default"].weight.data.zero_()
    assert torch.equal(logits(model), logits(without.eval()))


@pytest.mark.parametrize("kind", MODELS)
def test_of_fed_sb_a_square_is_trained_between_factors_that_all_have(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    """From the run's seed, as if R were 0 at first; written as LoRA of R·A and B, which gives the bits it computes."""
    plain, model = build(kind, tokenizer).eval(), build(kind, tokenizer, kind="sb", r=2, targets="all-linear").eval()
    assert torch.equal(logits(plain), logits(model))
    layers = lora_layers(model)
    heads = [name for name in trained(model) if "modules_to_save" in name]
    assert trained(model) == [*(f"{name}.lora_A.default.square" for name in layers), *heads]
    for other, is_same in ((build(kind, tokenizer, kind="sb", r=2, targets="all-linear"), True),
                           (build(kind, tokenizer, 8, kind="sb", r=2, targets="all-linear"), False)):  # fmt: skip
        for name, layer in lora_layers(other).items():
            assert torch.equal(layer.lora_A["default"].fixed, layers[name].lora_A["default"].fixed) == is_same
            assert torch.equal(layer.lora_B["default"].weight, layers[name].lora_B["default"].weight) == is_same
    save_adapter(moved(model), tmp_path / "adapter")
    with removed(model):
        save_model(model, tmp_path / "base")
    loaded = PeftModel.from_pretrained(type(model).from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded), logits(model)) and not torch.equal(logits(plain), logits(model))
    with merged(model):
        assert (logits(model) - logits(loaded)).abs().max() < 1e-5


def test_fixed_factors_have_the_length_of_orthonormal_ones(tokenizer: Any) -> None:
    """Uniform in ±√(3/d), so of variance 1/d: of rows of A and columns of B as long as d the length is 1 on average."""
    model = build("gpt2", tokenizer, kind="sb", r=8, targets="all-linear")
    for layer in lora_layers(model).values():
        a, b = layer.lora_A["default"].fixed, layer.lora_B["default"].weight
        for rows, width in ((a, a.shape[1]), (b.T, b.shape[0])):
            assert rows.shape == (8, width)
            bound = (3 / width) ** 0.5
            assert 0.8 * bound < rows.abs().max() <= bound and abs(float(rows.mean())) < 0.25 * bound
            # the mean of 8 lengths, each with a deviation of √(4/5 / d) about 1
            assert abs(float(rows.square().sum(1).mean()) - 1) < 4 * (0.8 / width / 8) ** 0.5


@pytest.mark.parametrize("added_beside", [("query",), ("key",), ("query", "key")])
def test_what_was_added_beside_some_layers_is_in_the_file_whichever_b_is_0(
    added_beside: tuple[str, ...], tokenizer: Any, tmp_path: Path
) -> None:
    """B of `query` is 0, that of `key` is not; ranks are unlike where one layer alone has more, scales never are."""
    model = moved(build("bert", tokenizer, r=2, alpha=6, targets=["query", "key"]))
    layers, draw = lora_layers(model), torch.Generator().manual_seed(5)
    names = {end: next(name for name in layers if name.endswith(end)) for end in ("query", "key")}
    layers[names["query"]].lora_B["default"].weight.data.zero_()
    add_to_base(model, {
        names[end]: (torch.randn(16, 3, generator=draw) / 4, torch.randn(3, 16, generator=draw) / 4)
        for end in added_beside
    })  # fmt: skip
    save_adapter(model, tmp_path / "adapter")
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert bool(told["rank_pattern"]) == bool(told["alpha_pattern"]) == (len(added_beside) == 1) and told["r"] == 5
    with removed(model):
        save_model(model, tmp_path / "base")
    loaded = PeftModel.from_pretrained(type(model).from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    assert (logits(loaded) - logits(model)).abs().max() < 1e-5


def test_fixed_factors_of_full_rank_follow_all_of_the_gradient_and_more_ranks_are_refused(tokenizer: Any) -> None:
    """B Bᵀ G Aᵀ A = G of a gradient with as many rows as there are ranks."""
    layers = lora_layers(build("bert", tokenizer, kind="sb", r=16, targets=["query"]))
    ((name, layer),) = layers.items()
    gradient = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))
    fit_square(layers, {name: gradient})
    a, b = layer.lora_A["default"].fixed, layer.lora_B["default"].weight
    assert torch.allclose(b @ b.T @ gradient @ a.T @ a, gradient, atol=1e-5)
    with pytest.raises(ConfigError, match=r"the gradient of `.*query` is \(16, 15\), less than task.model.adapter.r"):
        fit_square(layers, {name: gradient[:, :15]})


def test_means_of_squares_are_exact_and_gradients_are_those_of_the_product(tokenizer: Any) -> None:
    """Mean of B R_i A = B·mean(R_i)·A, and dL/dR = s Bᵀ (dL/dW) Aᵀ."""
    model = moved(build("gpt2", tokenizer, kind="sb", r=3, alpha=6)).double()
    (layer,) = lora_layers(model).values()
    factor, b = layer.lora_A["default"], layer.lora_B["default"].weight
    ids = torch.tensor([[5, 6, 7, 8]])
    layer.base_layer.weight.requires_grad_(True)
    model(input_ids=ids, labels=ids).loss.backward()
    expected = 2.0 * b.T @ layer.base_layer.weight.grad.T @ factor.fixed.T
    assert torch.allclose(factor.square.grad, expected, rtol=1e-12, atol=1e-16)
    squares, product = torch.randn(4, 3, 3).double(), layer.get_delta_weight("default").detach()
    products = []
    for square in (*squares, squares.mean(0)):
        factor.square.data = square
        products.append(layer.get_delta_weight("default").detach())
    assert (torch.stack(products[:-1]).mean(0) - products[-1]).norm() < 1e-14 * product.norm()


def test_layers_of_unlike_rank_are_written_with_their_own_scale(tokenizer: Any, tmp_path: Path) -> None:
    model = moved(build("gpt2", tokenizer, r=2, alpha=6, targets=["c_attn", "c_fc"]))
    save_adapter(model, tmp_path / "one")
    told = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    told |= {"rank_pattern": {"c_fc": 1}, "alpha_pattern": {"c_fc": 5}}
    (tmp_path / "one" / "adapter_config.json").write_text(json.dumps(told))
    path = tmp_path / "one" / "adapter_model.safetensors"
    tensors, factor = load_file(path), "base_model.model.transformer.h.0.mlp.c_fc.lora_{}.weight"
    tensors[factor.format("A")] = tensors[factor.format("A")][:1].contiguous()
    tensors[factor.format("B")] = tensors[factor.format("B")][:, :1].contiguous()
    save_file(tensors, path)
    model = build("gpt2", tokenizer, path=str(tmp_path / "one")).eval()
    name = "transformer.h.0.mlp.c_fc"
    add_to_base(model, {name: (torch.ones(64, 2) / 8, torch.ones(2, 16) / 8)})
    save_adapter(model, tmp_path / "two")
    again = build("gpt2", tokenizer, path=str(tmp_path / "two")).eval()
    assert [layer.r["default"] for layer in lora_layers(again).values()] == [2, 3]
    assert [layer.scaling["default"] for layer in lora_layers(again).values()] == [3.0, 5.0]
    assert (logits(again) - logits(model)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("adapter", "shown"),
    [
        ({"r": 0}, r"task.model.adapter.r is 0: input should be greater than or equal to 1"),
        ({"rank": 4}, r"unknown key task.model.adapter.rank; there are kind, r, alpha"),
        ({"kind": "sb", "targets": ["wpe"]}, r"kind is sb, but `transformer.wpe` among .* is no linear layer"),
        ({"kind": "dora"}, r"task.model.adapter.kind is 'dora'"),
        ({"targets": ["c_atn"]}, r"targets has 'c_atn', which is the end of no module's name; there are c_attn"),
        ({"save": ["haed"]}, r"save has 'haed', which is the end of no module's name"),
        ({"targets": ["wte"]}, r"`transformer.wte` has the weight of another layer too \(.* and lm_head.weight\)"),
        ({"path": "nowhere", "r": 4}, r"path is 'nowhere', whose .* task.model.adapter.r is set"),
        ({"path": "nowhere"}, r"path is 'nowhere', which has no adapter_config.json that can be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(adapter: dict[str, Any], shown: str, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=shown):
        build("gpt2", tokenizer, **adapter)


def test_a_vocabulary_that_the_base_lacks_and_a_quantised_base_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    small = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_layer=1, n_embd=16, n_head=2, n_positions=8))
    save_model(small, tmp_path)
    model = AnyModel.of({"path": str(tmp_path), "adapter": {"r": 2}})
    with pytest.raises(ConfigError, match="the tokenizer has 262 tokens, for which .* has too few embeddings"):
        model.build("CausalLM", 7, tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    loaded.config.quantization_config = json.loads('{"load_in_4bit": true}')
    with pytest.raises(ConfigError, match="the model's weights are quantised"):
        add_adapter(loaded, Adapter(), 0)


@pytest.mark.parametrize(
    "source",
    [
        T5Model(d_model=16, d_ff=32, d_kv=8, num_heads=2, num_layers=1, adapter=Adapter(r=2)),
        EncoderDecoder(d_model=16, d_ff=16, num_heads=2, num_layers=1, max_positions=16, adapter=Adapter(r=2)),
        EncoderDecoder(name="t5-random", d_model=16, d_ff=16, num_heads=2, num_layers=1, adapter=Adapter(r=2)),
        GPT2Model(width=16, layers=1, heads=2, positions=16, adapter=Adapter(r=2)),
    ],
    ids=["t5", "bart", "t5 or bart", "gpt2"],
)
def test_the_models_of_the_papers_take_adapters(source: Any, tokenizer: Any, tmp_path: Path) -> None:
    """From random weights, and from the folder that these were written to."""
    plain = replace(source, adapter=None).build(7, tokenizer)
    save_pretrained(plain, tokenizer, tmp_path / "base")
    for name in (source.name, str(tmp_path / "base")):
        model = replace(source, name=name).build(7, tokenizer)
        assert trained(model) and all("lora_" in name for name in trained(model))
        assert torch.equal(logits(model.eval()), logits(plain.eval()))
        folder = tmp_path / str(len(name))
        save_pretrained(moved(model), tokenizer, folder)
        assert (folder / "base").is_dir() == (name == source.name) and not (folder / "model.safetensors").exists()
        assert torch.equal(logits(load_saved(folder)[0]), logits(model))


def mapped_file(tensor: torch.Tensor) -> str:
    """The file that a tensor's memory is of, as the system tells it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < stop:
            return Path(line.split()[-1]).name if len(line.split()) > 5 else ""
    return ""


def test_the_base_is_in_the_memory_of_its_file_and_training_leaves_it_there(tokenizer: Any, tmp_path: Path) -> None:
    """Pages that all processes of a machine share; before, every rank held copies of its own."""
    sizes, head = MODELS["bert"]
    whole = AnyModel.of({"random": "bert", **sizes}).build(head, 7, tokenizer, num_labels=3)
    whole.bert.save_pretrained(tmp_path)  # without a head
    model = AnyModel.of({"path": str(tmp_path), "adapter": {"r": 2}}).build(head, 7, tokenizer, num_labels=3)
    engine = Engine(model, Partition(), torch.device("cpu"))
    engine.load(engine.initial_shared + 1)
    files = {name: mapped_file(parameter) for name, parameter in model.named_parameters()}
    in_file = {name for name, file in files.items() if file == "model.safetensors"}
    assert {name for name in engine.fixed if name not in in_file} == {
        "classifier.original_module.weight", "classifier.original_module.bias"
    }  # fmt: skip
    assert in_file and in_file < set(engine.fixed)
    embeddings = model.get_parameter("bert.embeddings.word_embeddings.weight")
    assert torch.equal(embeddings, whole.get_input_embeddings().weight)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_base_of_16_bits_stays_as_it_is_and_what_is_trained_is_of_32(
    kind: str, tokenizer: Any, tmp_path: Path
) -> None:
    sizes, head = MODELS[kind]
    settings = {"num_labels": 3} if head.endswith("Classification") else {}
    base = AnyModel.of({"random": kind, **sizes}).build(head, 7, tokenizer, **settings).bfloat16()
    base.save_pretrained(tmp_path / "base")
    model, wide = (
        AnyModel.of({"path": str(tmp_path / "base"), "adapter": {"r": 2, "base": which}})
        .build(head, 7, tokenizer, **settings)
        .eval()
        for which in ("saved", "fp32")
    )
    engine = Engine(model, Partition(), torch.device("cpu"))
    kept = [model.get_parameter(name) for name in engine.fixed]
    assert {(parameter.dtype, mapped_file(parameter)) for parameter in kept} == {(torch.bfloat16, "model.safetensors")}
    assert engine.trained and {parameter.dtype for parameter in engine.trained} == {torch.float32}
    for each in (model, wide):
        moved(each)
    assert (logits(model) - logits(wide)).abs().max() < 0.05 * logits(wide).abs().max()
    model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits.float().sum().backward()
    assert all(parameter.grad is not None for parameter in engine.trained)
    save_pretrained(model, tokenizer, tmp_path / "adapter")
    again = AnyModel.of(saved_keys(tmp_path / "adapter")).build(head, 1, tokenizer, **settings).eval()
    assert torch.equal(logits(again), logits(model))
    with merged(model):
        assert (logits(model) - logits(again)).abs().max() < 0.05 * logits(again).abs().max()
    if kind == "gpt2":  # peft 0.21 leaves heads in the base's dtype
        loaded = type(base).from_pretrained(tmp_path / "base", dtype="auto")
        assert torch.equal(logits(PeftModel.from_pretrained(loaded, tmp_path / "adapter").eval()), logits(model))


def test_gradients_that_pass_a_layer_of_16_bits_are_those_of_wide_ones(tokenizer: Any) -> None:
    """Rounded once, where the layer's own product rounds along the way; the layer itself and its sums stay."""
    torch.manual_seed(0)
    layer, plain = nn.Sequential(nn.Linear(24, 40).bfloat16().requires_grad_(False)), nn.Linear(24, 40).bfloat16()
    plain.load_state_dict(layer[0].state_dict())
    pass_gradients_quickly(layer)
    x, other = (torch.randn(6, 24).bfloat16().requires_grad_() for _ in range(2))
    other.data.copy_(x.data)
    pull = torch.randn(6, 40).bfloat16()
    found, expected = layer(x), plain(other)
    found.backward(pull)
    assert type(layer[0]) is FixedLinear and torch.equal(found, expected)
    assert x.grad is not None and torch.equal(x.grad, (pull.float() @ plain.weight.float()).bfloat16())
    with torch.no_grad():
        assert torch.equal(layer(x), expected)
    trained_one = nn.Sequential(nn.Linear(4, 4).bfloat16())
    pass_gradients_quickly(trained_one)
    assert type(trained_one[0]) is nn.Linear


def private_bytes() -> int:
    """Of this process's memory, what no file is behind."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def taken_by(keys: dict[str, int], base: str, tokenizer: Any, folder: Path) -> tuple[int, int, int]:
    """Bytes of a base's file, and how much private memory a rank with it has taken, before and after a step."""
    whole = AnyModel.of({"random": "gpt2", **keys}).build("CausalLM", 7, tokenizer)
    (whole.bfloat16() if base == "saved" else whole).save_pretrained(folder)
    num_bytes = (folder / "model.safetensors").stat().st_size
    del whole
    gc.collect()
    before = private_bytes()
    model = AnyModel.of({"path": str(folder), "adapter": {"r": 8, "base": base}}).build("CausalLM", 7, tokenizer)
    engine = Engine(model, Partition(), torch.device("cpu"))
    gc.collect()
    held = private_bytes() - before
    engine.start(engine.initial_shared, None, ClientConfig(optimizer="adamw", lr=1e-3), steps=1, seed=0)
    batch = {"input_ids": torch.arange(8)[None], "labels": torch.arange(8)[None]}
    engine.step(lambda module, each: (module(**each).loss, 1), [batch], 1)
    gc.collect()
    return num_bytes, held, private_bytes() - before


@pytest.mark.long
@pytest.mark.parametrize("base", ["fp32", "saved"])
def test_a_rank_has_no_copy_of_the_base(base: str, tokenizer: Any, tmp_path: Path) -> None:
    """Neither a server nor a worker, before and after a step, beyond what is trained and a step's gradients."""
    keys = {"n_layer": 4, "n_embd": 512, "n_head": 4, "n_positions": 64}
    taken_by({**keys, "n_layer": 1, "n_embd": 8}, base, tokenizer, tmp_path / "small")  # what only a first step imports
    num_bytes, held, in_all = taken_by(keys, base, tokenizer, tmp_path / "whole")
    assert held < num_bytes / 5 and in_all < num_bytes / 3, (held, in_all, num_bytes)
