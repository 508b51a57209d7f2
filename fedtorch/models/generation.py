"""Decoding: greedy for any encoder-decoder, with the energy of every token, or by transformers' own search.

Shapes: B batch, T target tokens, S source tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from fedtorch.models.padding import by_length, pad


class Generated(NamedTuple):
    """Text that was decoded from one input."""

    tokens: list[int]
    """with the end token, if one came"""
    energies: list[float]
    """one per token; NaN for a token that was forced"""
    energies_all: list[float] = []
    """the same over all logits; of no use to the method, which has a figure of both"""

    @property
    def is_empty(self) -> bool:
        """Did the end come at once?"""
        return sum(not math.isnan(energy) for energy in self.energies) <= 1


def new_tokens(
    model: Any, ids_BS: Tensor, mask_BS: Tensor, vocabulary: Any, *, max_new: int, before: int, **search: Any
) -> list[list[int]]:
    """Tokens that `model.generate` adds to each input, up to the end token, which is left out.

    Without a padding token rows that ended are filled up with the end token. before: tokens of its output that are not
    new (a decoder's input, an encoder-decoder's start). search: keywords of `generate`.
    """
    end, padding = vocabulary.eos_token_id, vocabulary.pad_token_id
    out = model.generate(
        input_ids=ids_BS,
        attention_mask=mask_BS,
        max_new_tokens=max_new,
        pad_token_id=end if padding is None else padding,
        eos_token_id=end,
        **search,
    )
    return [row[: row.index(end)] if end in row else row for row in out[:, before:].tolist()]


def token_energies(logits: Tensor, top_k: int | None, temperature: float) -> Tensor:
    """E = −T·log Σ exp(f_i / T) over the k largest logits of the last dimension (FewFedWeight, eq. 3).

    With fewer than k logits, or with None, over all of them. Not invariant to a constant added to all logits.
    """
    largest = logits if top_k is None else logits.topk(min(top_k, logits.shape[-1]), dim=-1).values
    return -temperature * torch.logsumexp(largest / temperature, dim=-1)


@torch.inference_mode()
def decode_greedily(
    model: Any,
    sources: Sequence[Sequence[int]],
    *,
    batch_size: int,
    max_length: int,
    top_k: int = 1,
    temperature: float = 1.0,
    on_batch: Callable[[], None] | None = None,
) -> list[Generated]:
    """The most probable token at every step, by the raw logits; at most `max_length` tokens per source, in order.

    In place of `generate`, which applies what a pretrained folder's settings ask for (BART's: beams, no repeated
    trigrams), and keeps the logits of all steps or none. The tokens that those settings force (BART's first token,
    the end token at the limit) are kept: the model was trained on them. Sources of similar length share a batch, and
    rows that ended leave it. on_batch() is called before each batch.
    """
    outputs = [Generated([], [])] * len(sources)
    for picked in by_length([len(source) for source in sources], batch_size, longest_first=True):
        if on_batch is not None:
            on_batch()
        ids_BS = pad([sources[i] for i in picked], model.config.pad_token_id).to(model.device)
        for index, row in zip(picked, _decode(model, ids_BS, max_length, top_k, temperature), strict=True):
            outputs[index] = row
    return outputs


def _decode(model: Any, ids_BS: Tensor, max_length: int, top_k: int, temperature: float) -> list[Generated]:
    forced_first = model.generation_config.forced_bos_token_id
    forced_last = model.generation_config.forced_eos_token_id
    mask_BS = (ids_BS != model.config.pad_token_id).long()
    hidden = model.get_encoder()(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state
    size = len(ids_BS)
    tokens_BT = torch.full((size, max_length), -1, device=ids_BS.device)
    energies_BT = torch.full((size, max_length), math.nan, device=ids_BS.device)
    energies_all_BT = torch.full_like(energies_BT, math.nan)
    rows = torch.arange(size, device=ids_BS.device)  # of tokens_BT, for those still in the batch
    is_done = torch.zeros(size, dtype=torch.bool, device=ids_BS.device)
    last = torch.full((size, 1), model.config.decoder_start_token_id, device=ids_BS.device)
    cache = None
    for step in range(max_length):
        output = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            attention_mask=mask_BS,
            decoder_input_ids=last,
            past_key_values=cache,
            use_cache=True,
        )
        cache, logits_BV = output.past_key_values, output.logits[:, -1].float()
        forced = forced_first if step == 0 else forced_last if step == max_length - 1 else None
        chosen = logits_BV.argmax(-1) if forced is None else torch.full_like(rows, forced)
        written = torch.where(is_done, tokens_BT[rows, step], chosen)
        tokens_BT[rows, step] = written
        if forced is None:
            energies_BT[rows, step] = token_energies(logits_BV, top_k, temperature)
            energies_all_BT[rows, step] = token_energies(logits_BV, None, temperature)
        is_done |= chosen == model.config.eos_token_id
        last = chosen[:, None]
        (left,) = torch.nonzero(~is_done, as_tuple=True)
        if not len(left):
            break
        if 4 * len(left) <= 3 * len(rows):
            rows, last, hidden, mask_BS = rows[left], last[left], hidden[left], mask_BS[left]
            is_done = is_done[left]
            cache.batch_select_indices(left)
    found = (tokens_BT.tolist(), energies_BT.tolist(), energies_all_BT.tolist())
    return [_cut(*row) for row in zip(*found, strict=True)]


def _cut(tokens: list[int], energies: list[float], energies_all: list[float]) -> Generated:
    """A row without what was not written."""
    length = tokens.index(-1) if -1 in tokens else len(tokens)
    return Generated(tokens[:length], energies[:length], energies_all[:length])
