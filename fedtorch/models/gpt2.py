"""GPT-2 for any task: a pretrained folder, a hub name, or random weights of a given size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, Count, Layers
from fedtorch.models.adapters.lora import with_adapter
from fedtorch.models.adapters.precision import dtype_of
from fedtorch.models.adapters.settings import Adapter, Quantize, check_quantize
from fedtorch.models.pretrained import fit_vocabulary, load_pretrained

RANDOM = "gpt2-random"


@dataclass(frozen=True)
class GPT2Model:
    """Which GPT-2. With `name: gpt2-random` the other fields give its size; else they are ignored but `dropout`."""

    name: str = RANDOM
    """a folder written by `save_pretrained`, a name in the local hub cache such as microsoft/DialoGPT-small,
    `hub:NAME` to download it, or `gpt2-random`"""
    width: Count = 128
    """width of the embeddings (768 in GPT-2 small)"""
    layers: Layers = 2
    """layers (12 in GPT-2 small)"""
    heads: Count = 4
    """attention heads (12 in GPT-2 small)"""
    positions: Count = 1024
    """tokens of the longest dialog"""
    dropout: BelowOne = 0.1
    """dropout rate, 0.1 in GPT-2"""
    adapter: Adapter | None = None
    """what is added to the model and trained in its place"""
    quantize: Quantize | None = None
    """how the weights that an adapter leaves as they are are kept, as `{kind: nf4}`; null: as `adapter.base` says"""

    def __post_init__(self) -> None:
        check_quantize(self.quantize, self.adapter)
        if self.width % self.heads:
            raise ConfigError(
                f"task.model.width is {self.width} but task.model.heads is {self.heads}; choose a width that is a "
                "multiple of the heads"
            )

    def build(self, seed: int, tokenizer: PreTrainedTokenizerBase) -> GPT2LMHeadModel:
        """The model in fp32 (a base as `adapter` says), its embedding as large as the tokenizer.

        Raises:
            ConfigError: the folder is missing or holds no GPT-2.
        """
        if self.name == RANDOM:
            torch.default_generator.manual_seed(seed)
            return with_adapter(GPT2LMHeadModel(self._config(tokenizer)), self.adapter, seed, None, self.quantize)
        rates: dict[str, Any] = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), self.dropout)
        base: dict[str, Any] = {"dtype": dtype_of(self.adapter), "quantize": self.quantize, "adapter": self.adapter}
        model, _ = load_pretrained(
            "GPT-2", GPT2LMHeadModel, self.name, key="task.model.name", instead=RANDOM, **base, **rates
        )
        fit_vocabulary(model, len(tokenizer))
        return with_adapter(model, self.adapter, seed, self.name, self.quantize)

    def _config(self, tokenizer: PreTrainedTokenizerBase) -> GPT2Config:
        return GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            n_positions=self.positions,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            resid_pdrop=self.dropout,
            bos_token_id=tokenizer.eos_token_id,  # the defaults lie outside a small vocabulary
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
