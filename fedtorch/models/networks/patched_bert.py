"""BERT or RoBERTa with a score on top and private patches of FedMatch: small networks put in by hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from .scoring import Head, Scorer

ATTENTION_DROPOUT = 0.1  # of PAL's own attention, as in BERT


class Ranker(Scorer):
    """f = w . dropout(p) + c, or two logits, of p = tanh(W_pool h_[CLS] + b).

    Parameters: `bert.*` by transformers' own names, `patch.*` (see `Patches`), `head.weight`, `head.bias`. Without a
    patch `bert` computes what transformers computes, to the bit. Patch and head are not initialised.

    patch: has the attributes of `fedtorch.models.patch.Patch`, or is None.
    """

    def __init__(self, bert: Any, *, patch: Any = None, head: Head = "scalar", head_dropout: float = 0.2):
        super().__init__(head)
        self.settings = {"patch": patch, "head": head, "head_dropout": head_dropout}
        config = bert.config
        self.bert = bert
        self.patch = None
        if patch is not None:
            sizes = {"hidden": config.hidden_size, "layers": config.num_hidden_layers, "eps": config.layer_norm_eps}
            self.patch = Patches(patch, **sizes)
            insert(bert, self.patch, patch)
        self.dropout = nn.Dropout(head_dropout)
        self.head = nn.Linear(config.hidden_size, self.num_outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Scores (batch,) or logits (batch, 2); the arguments are int64 of shape (batch, tokens)."""
        output = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return self.shaped(self.head(self.dropout(output.pooler_output)))

    def draw_private(self, seed: int) -> dict[str, Tensor]:
        """Fresh patch tensors by parameter name, on the CPU: see `Patches.draw`. Empty without a patch."""
        if self.patch is None:
            return {}
        return {f"patch.{name}": tensor for name, tensor in self.patch.draw(seed).items()}


class Projections(nn.Module):
    """V^E (`enc`, hidden to size) and V^D (`dec`, size to hidden), with biases."""

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(hidden, size), nn.Linear(size, hidden)


class LowRank(nn.Module):
    """V^D gelu(V^E h + b_E) + b_D: (batch, tokens, hidden) to the same shape; the mask plays no part."""

    def __init__(self, projections: Projections) -> None:
        super().__init__()
        self.enc, self.dec = projections.enc, projections.dec

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        output: Tensor = self.dec(gelu(self.enc(hidden)))
        return output


class Pal(nn.Module):
    """gelu(V^D attention(V^E h + b_E) + b_D): (batch, tokens, hidden) to the same shape.

    mask: what transformers hands to a layer, broadcastable to (batch, heads, tokens, tokens): bool, True where a
    token is seen (sdpa), or numbers to be added (eager); None if nothing is padded.
    """

    def __init__(self, projections: Projections, size: int, heads: int) -> None:
        super().__init__()
        self.enc, self.dec = projections.enc, projections.dec
        self.attn = SelfAttention(size, heads)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return gelu(self.dec(self.attn(self.enc(hidden), mask)))


class SelfAttention(nn.Module):
    """Multi-head self-attention of width `size`, without output projection."""

    needs_whole_mask = True  # flash attention's models hand none to their layers

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.heads = heads

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, size = hidden.shape
        query, key, value = (
            part(hidden).view(batch, tokens, self.heads, size // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        dropout = ATTENTION_DROPOUT if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return mixed.transpose(1, 2).reshape(batch, tokens, size)


class Patches(nn.Module):
    """All patches of a model: `layer.{i}`, or `layer.{i}.attn` and `layer.{i}.ffn`, or `top`, or `encoder` and `norm`.

    Shared projections are `shared`, or `shared.attn` and `shared.ffn`; they are registered first, so that
    `named_parameters` lists each once, under that name. Not initialised: see `draw`.
    """

    def __init__(self, patch: Any, *, hidden: int, layers: int, eps: float) -> None:
        super().__init__()

        def projections() -> Projections:
            return Projections(hidden, patch.size)

        def one(shared: Projections | None = None) -> nn.Module:
            pair = shared or projections()
            return Pal(pair, patch.size, patch.heads) if patch.structure == "pal" else LowRank(pair)

        share = patch.structure == "pal" and patch.pal_share_projections
        if patch.insertion == "vertical":
            self.top = one()
        elif patch.scope == "encoder":
            self.encoder, self.norm = one(), nn.LayerNorm(hidden, eps=eps)
        elif patch.insertion == "horizontal":
            pair = projections() if share else None
            if pair is not None:
                self.shared: nn.Module = pair
            self.layer = nn.ModuleList(one(pair) for _ in range(layers))
        else:
            pairs = {"attn": projections(), "ffn": projections()} if share else {"attn": None, "ffn": None}
            if share:
                self.shared = nn.ModuleDict({part: pair for part, pair in pairs.items() if pair is not None})
            self.layer = nn.ModuleList(
                nn.ModuleDict({part: one(pair) for part, pair in pairs.items()}) for _ in range(layers)
            )

    def draw(self, seed: int) -> dict[str, Tensor]:
        """A fresh start by parameter name, on the CPU: weights N(0, 0.02), biases 0, LN' 1 and 0.

        The same for the same seed; the global generator is left alone. LN' does not start as N(0, 0.02) as in the
        authors' release: its output, and with it the pre-trained function, would be near zero.
        """
        generator = torch.Generator().manual_seed(seed)
        fresh = {}
        for name, parameter in self.named_parameters():
            tensor = torch.zeros(parameter.shape, dtype=parameter.dtype)
            if name == "norm.weight":
                tensor.fill_(1.0)
            elif name.endswith(".weight"):
                tensor.normal_(0.0, 0.02, generator=generator)
            fresh[name] = tensor
        return fresh


class Place:
    """Arguments that a layer was called with, for the hooks inside it; forgotten when the layer is done.

    Noted where the layer calls its attention, not where it is called itself: activation checkpointing computes a
    layer's `forward` again without the layer's own hooks (transformers 5.23), maybe after it saw another batch.
    """

    def __init__(self, layer: Any) -> None:
        self.hidden: Tensor | None = None
        self.mask: Tensor | None = None
        layer.attention.register_forward_pre_hook(self.enter, with_kwargs=True)
        layer.output.register_forward_hook(self.leave)

    def enter(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.hidden, self.mask = args[0], _mask(args, kwargs)

    def leave(self, *_: Any) -> None:
        self.hidden = self.mask = None


def insert(bert: Any, patches: Patches, patch: Any) -> None:
    """Put `patches` into transformers' `BertModel` or `RobertaModel`, for good (whose equations: docs/fedmatch.md).

    Hooks hold the patches as arguments, not in closures, so that a deep copy of a module that owns both is whole.
    """
    if patch.insertion == "vertical":
        bert.encoder.layer[-1].register_forward_hook(partial(_replace, patches.top), with_kwargs=True)
        return
    if patch.scope == "encoder":
        hook = partial(_beside_encoder, patches.encoder, patches.norm)
        bert.encoder.register_forward_hook(hook, with_kwargs=True)
        return
    own: Any
    for layer, own in zip(bert.encoder.layer, patches.layer, strict=True):
        if patch.insertion == "horizontal" and patch.position == "outside_ln":
            layer.register_forward_hook(partial(_add, own), with_kwargs=True)
            continue
        place = Place(layer)
        if patch.insertion == "horizontal":
            layer.output.register_forward_pre_hook(partial(_add_patched_input, own, place))
            continue
        for part, output in (("attn", layer.attention.output), ("ffn", layer.output)):
            if patch.insertion == "outer":
                output.register_forward_pre_hook(partial(_add_patched_residual, own[part], place))
            else:
                # `output` is LayerNorm(dropout(dense(x)) + residual)
                output.dropout.register_forward_hook(partial(_inside, own[part], place, patch.inner_skip))


Network = Callable[[Tensor, "Tensor | None"], Tensor]


def _mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The attention mask in a call of encoder, layer or attention; all take it second."""
    mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    assert mask is None or mask.dim() == 4, "patches need the attention implementation sdpa or eager"
    return mask


def _add(patch: Network, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    return output + patch(args[0], _mask(args, kwargs))


def _replace(patch: Network, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    return patch(output, _mask(args, kwargs))


def _beside_encoder(patch: Network, norm: nn.Module, encoder: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    output.last_hidden_state = norm(output.last_hidden_state + patch(args[0], _mask(args, kwargs)))
    return output


def _inside(patch: Network, place: Place, skip: bool, dropout: nn.Module, args: Any, output: Tensor) -> Tensor:
    patched = patch(output, place.mask)
    return output + patched if skip else patched


def _add_patched_residual(patch: Network, place: Place, module: nn.Module, args: Any) -> tuple[Tensor, Tensor]:
    sublayer, residual = args
    return sublayer, residual + patch(residual, place.mask)


def _add_patched_input(patch: Network, place: Place, module: nn.Module, args: Any) -> tuple[Tensor, Tensor]:
    sublayer, residual = args
    assert place.hidden is not None
    return sublayer, residual + patch(place.hidden, place.mask)
