"""Any encoder-decoder: a folder with a pretrained one (BART, T5), or a small BART or T5 with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerBase,
)

from fedtorch.core.ranges import BelowOne, Count, Layers
from fedtorch.models.adapters.lora import with_adapter
from fedtorch.models.adapters.precision import dtype_of
from fedtorch.models.adapters.settings import Adapter, Quantize, check_quantize
from fedtorch.models.pretrained import fit_vocabulary, load_config, load_pretrained
from fedtorch.models.t5 import RANDOM as T5_RANDOM
from fedtorch.models.t5 import T5Model

BART_RANDOM = "bart-random"
RANDOM = (BART_RANDOM, T5_RANDOM)


@dataclass(frozen=True)
class EncoderDecoder:
    """Which encoder-decoder. With a folder, only `dropout` of the other fields counts."""

    name: str = BART_RANDOM
    """a folder written by `save_pretrained` (with its tokenizer), a name in the local hub cache such as
    facebook/bart-base, `hub:NAME` to download it, `bart-random` or `t5-random`"""
    d_model: Count = 64
    """width"""
    d_ff: Count = 256
    """width of the feed-forward layers"""
    num_heads: Count = 4
    """attention heads"""
    num_layers: Layers = 2
    """layers of the encoder, and of the decoder"""
    max_positions: Count = 512
    """of bart-random: longest input or output in tokens; T5 has no limit"""
    dropout: BelowOne | None = None
    """dropout rate; null: the pretrained model's own, 0.1 for random ones"""
    init: Literal["own", "copying"] = "own"
    """of t5-random: weights as T5 draws them, or with a bias towards copying (`models.t5.favour_copying`)"""
    adapter: Adapter | None = None
    """what is added to the model and trained in its place"""
    quantize: Quantize | None = None
    """how the weights that an adapter leaves as they are are kept, as `{kind: nf4}`; null: as `adapter.base` says"""

    def __post_init__(self) -> None:
        check_quantize(self.quantize, self.adapter)
        if self.init == "copying" and self.name != T5_RANDOM:
            raise ValueError(f"task.model.init is copying but task.model.name is {self.name}; only t5-random has it")

    def build(self, seed: int, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
        """The model in fp32 (a base as `adapter` says), its embedding at least as large as the tokenizer.

        Raises:
            ConfigError: the folder is missing or holds no encoder-decoder.
        """
        if self.name == T5_RANDOM:
            return self._t5().build(seed, tokenizer)
        torch.default_generator.manual_seed(seed)
        if self.name == BART_RANDOM:
            return with_adapter(self._bart(tokenizer), self.adapter, seed, None, self.quantize)
        return with_adapter(self._load(tokenizer), self.adapter, seed, self.name, self.quantize)

    def _t5(self) -> T5Model:
        return T5Model(
            d_model=self.d_model,
            d_ff=self.d_ff,
            d_kv=max(1, self.d_model // self.num_heads),
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            dropout=0.1 if self.dropout is None else self.dropout,
            init="copying" if self.init == "copying" else "t5",
            adapter=self.adapter,
            quantize=self.quantize,
        )

    def _bart(self, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
        config = BartConfig(
            vocab_size=len(tokenizer),
            d_model=self.d_model,
            encoder_ffn_dim=self.d_ff,
            decoder_ffn_dim=self.d_ff,
            encoder_attention_heads=self.num_heads,
            decoder_attention_heads=self.num_heads,
            encoder_layers=self.num_layers,
            decoder_layers=self.num_layers,
            max_position_embeddings=self.max_positions,
            dropout=0.1 if self.dropout is None else self.dropout,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.eos_token_id,  # as in BART
            forced_eos_token_id=None,
        )
        return BartForConditionalGeneration(config)

    def _load(self, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
        instead = " or ".join(RANDOM)
        config = load_config("encoder-decoder", self.name, key="task.model.name", instead=instead)
        for key in ("dropout", "dropout_rate"):  # BART's and T5's; as keywords, one of them would be refused
            if self.dropout is not None and hasattr(config, key):
                setattr(config, key, self.dropout)
        model, _ = load_pretrained(
            "encoder-decoder",
            AutoModelForSeq2SeqLM,
            self.name,
            key="task.model.name",
            instead=instead,
            dtype=dtype_of(self.adapter),
            quantize=self.quantize,
            adapter=self.adapter,
            config=config,
        )
        fit_vocabulary(model, len(tokenizer))
        return model
