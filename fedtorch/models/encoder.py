"""A BERT or RoBERTa encoder: pretrained from a folder, a package or the hub, or with random weights of a given size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModel, BertConfig, PreTrainedTokenizerBase, RobertaConfig

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, Count, Layers
from fedtorch.models.pretrained import load_config, load_with_pooler
from fedtorch.text.byte_bpe import load_subwords

RANDOM = "random"
_KINDS = ("bert", "roberta")


@dataclass(frozen=True)
class EncoderModel:
    """Which encoder. With `name: random` the sizes are used; else they are the loaded model's."""

    name: str = RANDOM
    """a folder written by `save_pretrained`, `package:NAME/FOLDER` (a folder of an installed package), a name in the
    local hub cache such as roberta-base, `hub:NAME` to download it, or `random`"""
    kind: Literal["bert", "roberta"] = "roberta"
    """of a random one: bert tells column and question apart by segment, roberta does not"""
    width: Count = 128
    """hidden size of a random one"""
    layers: Layers = 2
    """layers of a random one"""
    heads: Count = 4
    """attention heads of a random one"""
    feed_forward: Count = 512
    """width of a random one's feed-forward layers"""
    dropout: BelowOne = 0.1
    """dropout rate inside the encoder, hidden states and attention"""

    def __post_init__(self) -> None:
        if self.name == RANDOM and self.width % self.heads:
            raise ConfigError(f"width is {self.width} but heads is {self.heads}, which does not divide it")

    @property
    def is_random(self) -> bool:
        """Has it no vocabulary of its own?"""
        return self.name == RANDOM

    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The pretrained encoder's own tokenizer."""
        return load_subwords(self.name, key="task.encoder.name")

    def build(self, seed: int, *, vocab_size: int, max_length: int, pad_id: int) -> nn.Module:
        """The encoder in fp32, with a pooler; its embedding has `vocab_size` rows or more.

        Raises:
            ConfigError: nothing usable under that name, it is of another family, or its positions are too few.
        """
        torch.default_generator.manual_seed(seed)
        model = self._random(vocab_size, max_length, pad_id) if self.is_random else self._load()
        config: Any = model.config
        offset = config.pad_token_id + 1 if config.model_type == "roberta" else 0
        if config.max_position_embeddings < max_length + offset:
            most = config.max_position_embeddings - offset
            raise ConfigError(f"{self.name} has positions for {most} tokens but rows may have {max_length}")
        if config.vocab_size < vocab_size:
            model.resize_token_embeddings(vocab_size)  # type: ignore[operator]
        return model

    def _random(self, vocab_size: int, max_length: int, pad_id: int) -> nn.Module:
        sizes = {
            "vocab_size": vocab_size,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
            "pad_token_id": pad_id,
        }
        if self.kind == "bert":
            config: Any = BertConfig(**sizes, max_position_embeddings=max_length)
        else:  # RoBERTa counts positions from behind the padding id
            config = RobertaConfig(**sizes, max_position_embeddings=max_length + pad_id + 1, type_vocab_size=1)
        model: nn.Module = AutoModel.from_config(config)
        return model

    def _load(self) -> nn.Module:
        rates: dict[str, Any] = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), self.dropout)
        kind = load_config("encoder", self.name, key="task.encoder.name", instead=RANDOM).model_type
        if kind not in _KINDS:
            raise ConfigError(f"{self.name} is of the family {kind}; expected one of {', '.join(_KINDS)}")
        model: nn.Module = load_with_pooler(
            "encoder", AutoModel, self.name, key="task.encoder.name", instead=RANDOM, **rates
        )
        return model
