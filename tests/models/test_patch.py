"""Patches: where they sit, what they see, and that they leave everything else alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from fedtorch.core.errors import ConfigError
from fedtorch.models.bert import initialise
from fedtorch.models.networks.patched_bert import Ranker
from fedtorch.models.patch import Patch

SIZES = {
    "vocab_size": 20,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "attn_implementation": "sdpa",
}
PLACES: list[dict[str, Any]] = [
    {"insertion": "inner"},
    {"insertion": "inner", "inner_skip": False},
    {"insertion": "outer"},
    {"insertion": "vertical"},
    {"insertion": "horizontal"},
    {"insertion": "horizontal", "position": "inside_ln"},
    {"insertion": "horizontal", "scope": "encoder"},
]
PATCHES = [Patch(**place, structure=s, size=6) for place in PLACES for s in ("lr", "pal")]
PATCHES.append(Patch("outer", "pal", 6, pal_share_projections=False))
IDS = torch.tensor([[2, 5, 7, 3, 9, 11, 13, 3], [2, 6, 3, 8, 3, 0, 0, 0]])
MASK = (IDS != 0).long()


def build(patch: Patch | None, kind: str = "bert") -> Ranker:
    torch.manual_seed(3)
    config = BertConfig(**SIZES) if kind == "bert" else RobertaConfig(**SIZES, pad_token_id=0, type_vocab_size=1)
    model = Ranker(BertModel(config) if kind == "bert" else RobertaModel(config), patch=patch)
    initialise(model, 5)
    return model.eval()


def enlarged(patch: Patch, kind: str = "bert") -> Ranker:
    """With patches that are not nearly zero."""
    model = build(patch, kind)
    assert model.patch is not None
    with torch.no_grad():
        for parameter in model.patch.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def named(patch: Patch) -> str:
    return "-".join(map(str, [patch.insertion, patch.structure, patch.inner_skip, patch.scope, patch.position]))


all_patches = pytest.mark.parametrize("patch", PATCHES, ids=named)
both_kinds = pytest.mark.parametrize("kind", ["bert", "roberta"])


def hidden(bert: Any, ids: Tensor = IDS, mask: Tensor = MASK) -> Tensor:
    states: Tensor = bert(input_ids=ids, attention_mask=mask).last_hidden_state
    return states


@both_kinds
@torch.no_grad()
def test_without_a_patch_outputs_are_transformers_own_to_the_bit(kind: str) -> None:
    model = build(None, kind)
    plain = type(model.bert)(model.bert.config).eval()
    plain.load_state_dict(model.bert.state_dict())
    one, other = model.bert(IDS, MASK), plain(IDS, MASK)
    assert torch.equal(one.last_hidden_state, other.last_hidden_state)
    assert torch.equal(one.pooler_output, other.pooler_output)
    assert [name for name, _ in model.named_parameters() if name.startswith("patch")] == []


@all_patches
@both_kinds
@torch.no_grad()
def test_a_patch_of_zeros_that_is_added_changes_nothing(patch: Patch, kind: str) -> None:
    model, plain = build(patch, kind), build(None, kind)
    assert model.patch is not None
    for name, parameter in model.patch.named_parameters():
        parameter.fill_(1.0 if name == "norm.weight" else 0.0)
    same = patch.insertion in ("outer", "horizontal") or (patch.insertion == "inner" and patch.inner_skip)
    patched, unpatched = hidden(model.bert), hidden(plain.bert)
    if patch.scope == "encoder":  # LN' of what is normalised already
        unpatched = torch.nn.functional.layer_norm(unpatched, (12,), eps=model.bert.config.layer_norm_eps)
    assert torch.equal(patched, unpatched) == same
    assert torch.equal(patched, torch.zeros_like(patched)) == (patch.insertion == "vertical")


@all_patches
@both_kinds
def test_gradients_reach_every_patch_tensor_and_every_tensor_counts(patch: Patch, kind: str) -> None:
    model = enlarged(patch, kind)
    model(IDS, MASK).square().sum().backward()
    for name, parameter in model.named_parameters():
        unused = name.startswith("bert.embeddings") or name.endswith("key.bias")  # softmax ignores the keys' bias
        if not unused and not (patch.insertion == "vertical" and name.startswith("bert.encoder.layer.1.output")):
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@all_patches
@both_kinds
@torch.no_grad()
def test_padding_changes_no_score(patch: Patch, kind: str) -> None:
    model = enlarged(patch, kind).double()
    together = model(IDS, MASK)
    alone = torch.cat([model(IDS[:1], MASK[:1]), model(IDS[1:, :5], MASK[1:, :5])])
    assert torch.allclose(together, alone, rtol=0, atol=1e-12)  # another order of summation
    other = IDS.masked_fill(MASK == 0, 17)
    if kind == "bert":  # RoBERTa counts positions by what is not padding
        assert torch.equal(model(other, MASK), together)


@torch.no_grad()
def test_pal_would_notice_a_missing_mask() -> None:
    model = enlarged(Patch("vertical", "pal", 6)).double()
    states = torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pal: Any = model.patch.top  # type: ignore[union-attr]
    seen = MASK.bool()[:, None, None, :].expand(2, 1, 8, 8)
    added = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)
    assert torch.allclose(pal(states, seen), pal(states, added), rtol=0, atol=1e-12)
    assert not torch.allclose(pal(states, seen)[1], pal(states, None)[1], atol=1e-3)


@torch.no_grad()
def test_eager_attention_gives_the_same_patched_outputs() -> None:
    model = enlarged(Patch("horizontal", "pal", 6)).double()
    sdpa = model(IDS, MASK)
    model.bert.set_attn_implementation("eager")
    assert torch.allclose(model(IDS, MASK), sdpa, rtol=0, atol=1e-12)


def test_pal_drops_attention_in_training_only() -> None:
    model = enlarged(Patch("vertical", "pal", 6))
    pal: Any = model.patch.top  # type: ignore[union-attr]
    states = torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(2))
    assert torch.equal(pal(states, None), pal(states, None))
    pal.train()
    assert not torch.equal(pal(states, None), pal(states, None))


@all_patches
def test_activation_checkpointing_gives_the_same_gradients(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two batches in one loss: what is computed again must see its own batch's mask."""
    monkeypatch.setattr("fedtorch.models.networks.patched_bert.ATTENTION_DROPOUT", 0.0)
    one, other = enlarged(patch).train(), enlarged(patch).train()
    for module in (*one.modules(), *other.modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    other.bert.activation_checkpointing_enable()
    for model in (one, other):
        (model(IDS, MASK) * model(IDS.flip(0), MASK.flip(0))).sum().backward()
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters()):
        assert a.grad is not None and b.grad is not None and torch.allclose(a.grad, b.grad, atol=1e-6), name


@all_patches
@torch.no_grad()
def test_a_deep_copy_uses_its_own_patch(patch: Patch) -> None:
    model = enlarged(patch)
    other = copy.deepcopy(model)
    before = model(IDS, MASK)
    assert torch.equal(other(IDS, MASK), before)
    for parameter in other.patch.parameters():  # type: ignore[union-attr]
        parameter.zero_()
    assert torch.equal(model(IDS, MASK), before) and not torch.equal(other(IDS, MASK), before)


@pytest.mark.parametrize(
    ("patch", "wanted"),
    [
        (Patch("vertical", "lr", 6), {"top.enc.weight", "top.dec.bias"}),
        (Patch("horizontal", "lr", 6), {"layer.0.enc.weight", "layer.1.dec.bias"}),
        (Patch("outer", "lr", 6), {"layer.0.attn.enc.weight", "layer.1.ffn.dec.bias"}),
        (Patch("horizontal", "pal", 6), {"shared.enc.weight", "layer.1.attn.query.weight"}),
        (Patch("inner", "pal", 6), {"shared.attn.enc.weight", "shared.ffn.dec.bias", "layer.0.ffn.attn.value.bias"}),
        (Patch("vertical", "pal", 6), {"top.enc.weight", "top.attn.key.weight"}),
        (Patch("horizontal", "lr", 6, scope="encoder"), {"encoder.enc.weight", "norm.weight"}),
    ],
    ids=lambda value: named(value) if isinstance(value, Patch) else "",
)
def test_names(patch: Patch, wanted: set[str]) -> None:
    names = {name for name, _ in build(patch).named_parameters()}
    assert {f"patch.{name}" for name in wanted} <= names
    if "shared.enc.weight" in wanted:
        assert not any(name.startswith("patch.layer.") and ".enc." in name for name in names)
    assert {"head.weight", "head.bias", "bert.encoder.layer.0.attention.self.query.weight"} <= names


@all_patches
def test_a_clients_own_draw(patch: Patch) -> None:
    model = build(patch)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = model.draw_private(1), model.draw_private(1), model.draw_private(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert set(one) == {name for name, _ in model.named_parameters() if name.startswith("patch.")}
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name]) and tensor.shape == model.get_parameter(name).shape
        if name == "patch.norm.weight":
            assert torch.equal(tensor, torch.ones(12))
        elif name.endswith("bias"):
            assert not tensor.any()
        else:
            assert not torch.equal(tensor, other[name]) and 0.01 < tensor.std() < 0.03


def test_a_model_without_patch_draws_nothing() -> None:
    assert build(None).draw_private(1) == {}


def test_release_position_inside_the_layer_norm_by_hand() -> None:
    """BL = LN(FFN(SA(h)) + SA(h) + Patch(h)), computed from the layer's parts."""
    model = enlarged(Patch("horizontal", "lr", 6, position="inside_ln"))
    with torch.no_grad():
        states = torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(2))
        layer, patch = model.bert.encoder.layer[0], model.patch.layer[0]  # type: ignore[union-attr,index]
        sa = layer.attention(states)[0]
        ffn = layer.output.dense(layer.intermediate(sa))
        expected = layer.output.LayerNorm(ffn + sa + patch(states, None))
        assert torch.allclose(layer(states), expected, atol=1e-6)


def test_a_pal_size_that_the_heads_do_not_divide_is_an_error() -> None:
    with pytest.raises(ConfigError, match="patch.size is 128, .* multiple of patch.heads, 6.* set it to 126 or 132"):
        Patch(structure="pal", size=128)
    with pytest.raises(ConfigError, match="set it to 6, or"):
        Patch(structure="pal", size=4)
    assert Patch(structure="lr", size=128) == replace(Patch(), size=128)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"insertion": "outer", "inner_skip": False}, "patch.inner_skip is false, which only insertion inner knows"),
        ({"insertion": "vertical", "scope": "encoder"}, "patch.scope is encoder, which only insertion horizontal"),
        ({"insertion": "inner", "position": "inside_ln"}, "patch.position is inside_ln, which only insertion horiz"),
        ({"scope": "encoder", "position": "inside_ln"}, "patch.position is inside_ln, .* with scope layer knows"),
    ],
)
def test_keys_that_the_insertion_does_not_know_are_errors(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Patch(**settings)
