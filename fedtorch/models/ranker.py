"""BERT or RoBERTa with a score on top and, if wanted, a patch inside; and how it is written to a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from fedtorch.core.seeds import generator_for
from fedtorch.models.patch import Patch, Patches, insert
from fedtorch.models.pretrained import in_own_memory
from fedtorch.models.scorer import Head, Scorer

DESCRIPTION, REST = "ranker.json", "ranker.safetensors"


class Ranker(Scorer):
    """f = w . dropout(p) + c, or two logits, of p = tanh(W_pool h_[CLS] + b).

    Parameters: `bert.*` by transformers' own names, `patch.*` (see `Patches`), `head.weight`, `head.bias`. Without a
    patch `bert` computes what transformers computes, to the bit. Patch and head are not initialised: see `initialise`.
    """

    def __init__(self, bert: Any, *, patch: Patch | None = None, head: Head = "scalar", head_dropout: float = 0.2):
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

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw head and patch from `seed`: weights N(0, 0.02), biases 0. The backbone is left as it is."""
        self.head.weight.normal_(0.0, 0.02, generator=generator_for(seed, "head"))
        self.head.bias.zero_()
        for name, tensor in self.draw_private(seed).items():
            self.get_parameter(name).copy_(tensor)

    def draw_private(self, seed: int) -> dict[str, Tensor]:
        """Fresh patch tensors by parameter name, on the CPU: see `Patches.draw`. Empty without a patch."""
        if self.patch is None:
            return {}
        return {f"patch.{name}": tensor for name, tensor in self.patch.draw(seed).items()}


def save_ranker(model: Ranker, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write all that the model is made of.

    Backbone and tokenizer are as `save_pretrained` writes them, so `AutoModel` and `AutoTokenizer` load them (without
    the patch); `ranker.safetensors` holds patch and head by parameter name, `ranker.json` what they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hf_logging.disable_progress_bar()  # its bar would run into ours
    model.bert.save_pretrained(folder, state_dict=in_own_memory(model.bert.state_dict()))
    tokenizer.save_pretrained(folder)
    rest = {name: parameter for name, parameter in model.named_parameters() if not name.startswith("bert.")}
    save_file(in_own_memory(rest), folder / REST)
    patch = model.settings["patch"]
    settings = model.settings | {"patch": asdict(patch) if isinstance(patch, Patch) else None}
    (folder / DESCRIPTION).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
