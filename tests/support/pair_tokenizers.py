"""Tiny tokenizers of BERT and RoBERTa, and a tiny RoBERTa."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertTokenizer,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizer,
)

from fedtorch.text.wordpieces import load_wordpieces

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "what", "is", "water", "##s", "policy", "covers"]


@pytest.fixture(scope="session")
def bert_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data folder, as far as its tokenizer goes."""
    folder = tmp_path_factory.mktemp("data")
    BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}).save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture(scope="session")
def wordpieces(bert_data: Path) -> Any:
    return load_wordpieces(bert_data / "tokenizer")


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roberta")
    entries = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "c", "d", "Ġ"]
    RobertaTokenizer(vocab={word: i for i, word in enumerate(entries)}, merges=[]).save_pretrained(folder)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    config = RobertaConfig(vocab_size=10, max_position_embeddings=12, type_vocab_size=1, **sizes)
    RobertaModel(config).save_pretrained(folder)
    return folder
