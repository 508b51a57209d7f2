"""BERT or RoBERTa as a model that scores pairs: which one, how large, with which patch and head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase, RobertaModel

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, Count, Layers
from fedtorch.core.seeds import generator_for
from fedtorch.models.networks.patched_bert import Ranker
from fedtorch.models.networks.scoring import Head
from fedtorch.models.patch import Patch
from fedtorch.models.pretrained import (
    copy_networks,
    in_own_memory,
    load_config,
    load_with_pooler,
    save_model,
    save_tokenizer,
)
from fedtorch.text.wordpieces import Pair, encode, frame, load_wordpieces

RANDOM = "bert-random"
KINDS = {"bert": BertModel, "roberta": RobertaModel}
DESCRIPTION, REST = "ranker.json", "ranker.safetensors"


@dataclass(frozen=True)
class BertEncoder:
    """Which BERT. With `name: bert-random` the fields from `hidden` to `positions` give its size."""

    name: str = RANDOM
    """a folder written by `save_pretrained`, `package:NAME/PATH` (a folder in an installed package), a name in the
    local hub cache such as bert-base-uncased, `hub:NAME` to download it, or `bert-random`"""
    hidden: Count = 128
    """width"""
    layers: Layers = 2
    """layers"""
    heads: Count = 2
    """attention heads, of which `hidden` must be a multiple"""
    ffn: Count = 512
    """width of the feed-forward layers"""
    positions: Count = 512
    """most tokens of a pair with its special tokens"""
    dropout: BelowOne | None = None
    """dropout rate inside the encoder; null: the model's own, 0.1 for a random one"""
    head: Head = "scalar"
    """scalar: the score is a number; two_class: the probability of class 1 of two logits"""
    head_dropout: BelowOne = 0.2
    """dropout rate before the head"""
    patch: Patch | None = None
    """the patch, or null for a plain BERT"""

    def __post_init__(self) -> None:
        if self.name == RANDOM and self.hidden % self.heads:
            raise ConfigError(f"model.hidden is {self.hidden}, which is not a multiple of model.heads, {self.heads}")

    def tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        """The model's own; for `bert-random` the one in `<folder>/tokenizer`, where `folder` holds the prepared data.

        Raises:
            ConfigError: there is none, or it is not a usable one.
        """
        is_random = self.name == RANDOM
        key = "task.data" if is_random else "task.model.name"
        return load_wordpieces(folder / "tokenizer" if is_random else self.name, key=key)

    def build(self, seed: int, vocabulary: PreTrainedTokenizerBase) -> Ranker:
        """The model in fp32. The backbone's weights do not depend on patch and head.

        Raises:
            ConfigError: the folder is missing or holds no BERT, or the vocabulary does not fit it.
        """
        torch.default_generator.manual_seed(seed)
        bert = BertModel(self._random_config(vocabulary)) if self.name == RANDOM else self._load(vocabulary)
        ranker = Ranker(bert, patch=self.patch, head=self.head, head_dropout=self.head_dropout)
        initialise(ranker, seed)
        return ranker

    def encode(self, vocabulary: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Word-piece ids of each text without special tokens, the first `max_length` of them."""
        return encode(vocabulary, texts, max_length)

    def collate(self, vocabulary: PreTrainedTokenizerBase, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """The batch that the model's `forward` takes: see `frame`."""
        return frame(vocabulary, pairs)

    def longest(self, question_max: int, answer_max: int) -> int:
        """Tokens of the longest pair, with its special tokens.

        Raises:
            ConfigError: the model has fewer positions.
        """
        special, positions = 3, self.positions
        if self.name != RANDOM:
            config = self._config()
            positions = config.max_position_embeddings
            if config.model_type == "roberta":
                special, positions = 4, positions - config.pad_token_id - 1  # it counts from the padding's id on
        needed = question_max + answer_max + special
        if needed > positions:
            raise ConfigError(
                f"pairs of up to {question_max} + {answer_max} word pieces and {special} special tokens need {needed} "
                f"positions, but the model {self.name!r} has {positions}; lower the longest question or answer"
                + (", or raise task.model.positions" if self.name == RANDOM else "")
            )
        return needed

    def save(self, model: Ranker, vocabulary: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write model and tokenizer: see `save_ranker`."""
        save_ranker(model, vocabulary, folder)

    def record(self, vocabulary: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Facts about the model for the run's record."""
        return {"encoder": "random weights" if self.name == RANDOM else self.name, "vocabulary": len(vocabulary)}

    def _random_config(self, vocabulary: PreTrainedTokenizerBase) -> BertConfig:
        dropout = 0.1 if self.dropout is None else self.dropout
        return BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.ffn,
            max_position_embeddings=self.positions,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            pad_token_id=vocabulary.pad_token_id,
            attn_implementation="sdpa",
        )

    def _config(self) -> Any:
        config = load_config("BERT", self.name, key="task.model.name", instead=RANDOM)
        if config.model_type not in KINDS:
            raise ConfigError(
                f"task.model.name is {self.name!r}, a model of kind {config.model_type!r}; expected one of "
                f"{', '.join(KINDS)} (MiniLM and the like are of kind bert)"
            )
        return config

    def _load(self, vocabulary: PreTrainedTokenizerBase) -> Any:
        # sdpa is fast everywhere and hands PAL the whole mask; chunks would hide tokens from it
        options: dict[str, Any] = {"attn_implementation": "sdpa", "chunk_size_feed_forward": 0}
        if self.dropout is not None:
            options |= {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        kind = KINDS[self._config().model_type]
        bert = load_with_pooler("BERT", kind, self.name, key="task.model.name", instead=RANDOM, **options)
        if len(vocabulary) > bert.config.vocab_size:
            raise ConfigError(
                f"the tokenizer of {self.name!r} has {len(vocabulary)} entries but the model knows "
                f"{bert.config.vocab_size}; they do not belong together"
            )
        return bert


@torch.no_grad()
def initialise(model: Ranker, seed: int) -> None:
    """Draw head and patch from `seed`: weights N(0, 0.02), biases 0. The backbone is left as it is."""
    model.head.weight.normal_(0.0, 0.02, generator=generator_for(seed, "head"))
    model.head.bias.zero_()
    for name, tensor in model.draw_private(seed).items():
        model.get_parameter(name).copy_(tensor)


def save_ranker(model: Ranker, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write all that the model is made of.

    Backbone and tokenizer are as `save_pretrained` writes them, so `AutoModel` and `AutoTokenizer` load them (without
    the patch); `ranker.safetensors` holds patch and head by parameter name, `ranker.json` what they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model.bert, folder)
    save_tokenizer(tokenizer, folder)
    rest = {name: parameter for name, parameter in model.named_parameters() if not name.startswith("bert.")}
    save_file(in_own_memory(rest), folder / REST)
    patch = model.settings["patch"]
    settings = model.settings | {"patch": asdict(patch) if isinstance(patch, Patch) else None}
    (folder / DESCRIPTION).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    copy_networks(folder)
