"""T5 for any task: a pretrained folder, a hub name, or random weights of a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, T5Config, T5ForConditionalGeneration

from fedtorch.core.ranges import BelowOne, Count, Layers
from fedtorch.models.adapters.lora import has_adapter, with_adapter
from fedtorch.models.adapters.precision import dtype_of
from fedtorch.models.adapters.saved import save_adapted
from fedtorch.models.adapters.settings import Adapter, Quantize, check_quantize
from fedtorch.models.padding import by_length, pad
from fedtorch.models.pretrained import fit_vocabulary, load_pretrained, save_model, save_tokenizer

RANDOM = "t5-random"


@dataclass(frozen=True)
class T5Model:
    """Which T5. With `name: t5-random` the other fields give its size; else they are ignored but `dropout`."""

    name: str = RANDOM
    """a folder written by `save_pretrained`, a name in the local hub cache such as t5-base, `hub:NAME` to download it,
    or `t5-random`"""
    d_model: Count = 128
    """width"""
    d_ff: Count = 512
    """width of the feed-forward layers"""
    d_kv: Count = 32
    """width of an attention head"""
    num_heads: Count = 4
    """attention heads"""
    num_layers: Layers = 2
    """layers of the encoder"""
    num_decoder_layers: Layers | None = None
    """layers of the decoder; null: as many as the encoder's"""
    feed_forward: Literal["relu", "gated-gelu"] = "relu"
    """kind of feed-forward layer"""
    tie_embeddings: bool = True
    """share the output matrix with the embeddings (T5 1.0 does, 1.1 does not)"""
    dropout: BelowOne = 0.1
    """dropout rate, 0.1 in T5"""
    relative_positions: Count = 32
    """buckets of relative positions"""
    init: Literal["t5", "copying"] = "t5"
    """random weights as T5 draws them, or with a bias towards copying: see `favour_copying`"""
    adapter: Adapter | None = None
    """what is added to the model and trained in its place"""
    quantize: Quantize | None = None
    """how the weights that an adapter leaves as they are are kept, as `{kind: nf4}`; null: as `adapter.base` says"""

    def __post_init__(self) -> None:
        check_quantize(self.quantize, self.adapter)

    def build(self, seed: int, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
        """The model in fp32 (a base as `adapter` says), its embedding as large as the tokenizer.

        Raises:
            ConfigError: the folder is missing or holds no T5.
        """
        torch.default_generator.manual_seed(seed)
        model = self._random(tokenizer) if self.name == RANDOM else self._load(tokenizer)
        source = None if self.name == RANDOM else self.name
        return with_adapter(model, self.adapter, seed, source, self.quantize)

    def _random(self, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
        config = T5Config(
            vocab_size=len(tokenizer),
            d_model=self.d_model,
            d_ff=self.d_ff,
            d_kv=self.d_kv,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            num_decoder_layers=self.num_decoder_layers or self.num_layers,
            feed_forward_proj=self.feed_forward,
            tie_word_embeddings=self.tie_embeddings,
            dropout_rate=self.dropout,
            relative_attention_num_buckets=self.relative_positions,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,  # not set by default since transformers 5
        )
        model = T5ForConditionalGeneration(config)
        if self.init == "copying":
            favour_copying(model)
        return model

    def _load(self, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
        model, _ = load_pretrained(
            "T5",
            T5ForConditionalGeneration,
            self.name,
            key="task.model.name",
            instead=RANDOM,
            dtype=dtype_of(self.adapter),
            quantize=self.quantize,
            adapter=self.adapter,
            dropout_rate=self.dropout,
        )
        fit_vocabulary(model, len(tokenizer))
        return model


@torch.no_grad()
def favour_copying(model: Any) -> None:
    """Change T5's random start so that a small model learns to translate and copy words in minutes.

    Cross-attention starts as a copy (its output matrix is the transpose of its value matrix), and the biases of
    relative positions start sharp (standard deviation 4): Adam moves them by no more than its rate per step, so from
    T5's own start a thousand steps hardly tell neighbours apart. Measured on the synthetic clients: 1 % exact match
    after three passes over all data without, 79 % with sharp positions.
    """
    for block in model.decoder.block:
        attention = block.layer[1].EncDecAttention
        attention.o.weight.copy_(attention.v.weight.T)
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            parameter.normal_(0.0, 4.0)


def save_pretrained(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write model and tokenizer for `AutoModelForSeq2SeqLM.from_pretrained(folder)` and `AutoTokenizer`.

    Of a model with an adapter that alone, see `save_adapted`.
    """
    (save_adapted if has_adapter(model) else save_model)(model, folder)
    save_tokenizer(tokenizer, folder)


@torch.inference_mode()
def generate_greedily(
    model: Any, sources: Sequence[Sequence[int]], *, batch_size: int, max_length: int
) -> list[list[int]]:
    """Greedy decoding of every source, with cached keys and values; token ids without padding, in the given order.

    Sources of similar length share a batch, so little is computed on padding. At most `max_length` new tokens each.
    """
    outputs: list[list[int]] = [[] for _ in sources]
    pad_id = model.config.pad_token_id
    for picked in by_length([len(source) for source in sources], batch_size, longest_first=True):
        ids = pad([sources[i] for i in picked], pad_id).to(model.device)
        generated = model.generate(
            input_ids=ids,
            attention_mask=(ids != pad_id).long(),
            max_new_tokens=max_length,
            num_beams=1,
            do_sample=False,
            use_cache=True,
        )
        for index, row in zip(picked, generated.tolist(), strict=True):
            outputs[index] = [token for token in row[1:] if token != pad_id]
    return outputs
