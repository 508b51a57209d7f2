"""Tokenizers of BERT and RoBERTa: batches of pairs, and that a broken one is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertTokenizer,
)

from fedtorch.core.errors import ConfigError
from fedtorch.models.bert import BertEncoder
from fedtorch.text.wordpieces import load_wordpieces

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "what", "is", "water", "##s", "policy", "covers"]
SMALL = BertEncoder(hidden=12, layers=2, heads=2, ffn=24, positions=16)
PAIRS = [([8, 9], [10, 11, 12]), ([8], [13]), ([], [10] * 5)]


def test_word_pieces_without_special_tokens_lower_cased_and_cut(wordpieces: Any) -> None:
    texts = ["What IS waters", "", "policy zebra  covers a b c"]
    assert SMALL.encode(wordpieces, texts, 5) == [[8, 9, 10, 11], [], [12, 1, 13, 5, 6]]
    assert SMALL.encode(wordpieces, [], 5) == []


def test_pairs_are_framed_and_padded_once_at_the_right(wordpieces: Any) -> None:
    batch = SMALL.collate(wordpieces, PAIRS)
    assert batch["input_ids"].tolist() == [
        [2, 8, 9, 3, 10, 11, 12, 3],
        [2, 8, 3, 13, 3, 0, 0, 0],
        [2, 3, 10, 10, 10, 10, 10, 3],
    ]
    assert batch["token_type_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1, 1],
    ]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 5 + [0] * 3, [1] * 8]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_framing_equals_the_tokenizers_own(wordpieces: Any, roberta: Path) -> None:
    for one in (wordpieces, load_wordpieces(roberta)):
        texts = [("a b", "c a"), ("c", "b a c")]
        pairs = list(zip(SMALL.encode(one, [q for q, _ in texts], 9), SMALL.encode(one, [a for _, a in texts], 9)))
        own = one([q for q, _ in texts], [a for _, a in texts], padding=True, return_tensors="pt")
        batch = SMALL.collate(one, pairs)
        assert all(torch.equal(batch[key], own[key]) for key in batch) and len(batch) == len(one.model_input_names)


def test_roberta_pairs_have_two_separators_and_no_segments(roberta: Path) -> None:
    model = BertEncoder(name=str(roberta))
    tokenizer = model.tokenizer(roberta)
    batch = model.collate(tokenizer, [([5], [6, 7]), ([5], [])])
    assert batch["input_ids"].tolist() == [[0, 5, 2, 2, 6, 7, 2], [0, 5, 2, 2, 2, 1, 1]]
    assert set(batch) == {"input_ids", "attention_mask"}
    ranker = model.build(0, tokenizer)
    assert ranker(**batch).shape == (2,)
    names = {name for name, _ in ranker.named_parameters()}
    assert "bert.encoder.layer.0.attention.self.query.weight" in names and "bert.pooler.dense.weight" in names


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer' is not a folder; expected one written by save_pretrained"):
        SMALL.tokenizer(tmp_path)


def _vocabulary_of(words: list[str]) -> Callable[[Path], None]:
    return lambda folder: BertTokenizer(vocab={w: i for i, w in enumerate(words)}).save_pretrained(folder)


def _broken(folder: Path) -> None:
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")


def _unframed(folder: Path) -> None:
    """A word-piece vocabulary saved without its framing."""
    _vocabulary_of(WORDS)(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (_vocabulary_of(WORDS[:5]), "it does not know the letters a, b and c"),
        (_broken, "no tokenizer could be loaded from"),
        (_unframed, "puts 0 special tokens into a pair"),
    ],
)
def test_a_tokenizer_that_does_not_work_is_an_error(write: Any, problem: str, tmp_path: Path) -> None:
    write(tmp_path / "tokenizer")
    with pytest.raises(ConfigError, match=problem):
        SMALL.tokenizer(tmp_path)


def test_t5s_tokenizer_is_refused(tiny_data: Path) -> None:
    with pytest.raises(ConfigError, match="has none of tokenizer.json|not a usable BERT or RoBERTa tokenizer"):
        load_wordpieces(tiny_data / "tokenizer")
