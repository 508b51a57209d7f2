"""Logits of models that classify texts, whatever their architecture and however the texts are padded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
"""input_ids and attention_mask (rows, longest), int64, padded on the right; token_type_ids of two texts."""


def classify(model: Any, inputs: Inputs) -> Tensor:
    """Logits (rows, labels). Of a decoder those at a text's last token, which the attention mask shows.

    transformers looks for the last token that is not the padding token: the wrong one where padding is the end
    token and a text ends with that.
    """
    if model.config.is_encoder_decoder:
        return _at_last_end(model, inputs)
    if getattr(model.config, "summary_type", None) == "last":
        inputs = padded_left(inputs)
    if not hasattr(model, "score"):
        found: Tensor = model(**inputs).logits
        return found
    texts = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    states = model.base_model(**texts, use_cache=False).last_hidden_state
    last = inputs["attention_mask"].sum(1) - 1
    scored: Tensor = model.score(states[torch.arange(len(last), device=last.device), last])
    return scored


def padded_left(inputs: Inputs) -> dict[str, Tensor]:
    """Move the padding to the left, for models that read their label off the last place, such as XLNet."""
    mask = inputs["attention_mask"]
    shift = mask.shape[1] - mask.sum(1, keepdim=True)
    places = (torch.arange(mask.shape[1], device=mask.device) - shift) % mask.shape[1]
    return {name: value.gather(1, places) for name, value in inputs.items()}


def _at_last_end(model: Any, inputs: Inputs) -> Tensor:
    """Logits of an encoder-decoder, which are those at a text's last end token.

    transformers refuses batches of texts with different numbers of it, as where one quotes `</s>`: row by row then.
    """
    ends = (inputs["input_ids"] == model.config.eos_token_id).sum(1)
    if bool((ends == ends[0]).all()):
        whole: Tensor = model(**inputs).logits
        return whole
    lengths = inputs["attention_mask"].sum(1).tolist()
    rows = [{key: value[i : i + 1, :length] for key, value in inputs.items()} for i, length in enumerate(lengths)]
    return torch.cat([model(**row).logits for row in rows])
