"""Tokenizers of BERT and RoBERTa: loaded so that a broken one is noticed, and pairs framed as those models expect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from fedtorch.text.pretrained import load_tokenizer_as

Pair = tuple[list[int], list[int]]
_PROBE = ("a b", "c")


def load_wordpieces(folder_or_name: str | Path, *, key: str = "") -> PreTrainedTokenizerBase:
    """A usable BERT or RoBERTa tokenizer from a folder, an installed package or the hub: see `located`.

    The letters a, b and c must be known and framed as a pair.

    Raises:
        ConfigError: no such folder or name, or what is there is no usable tokenizer.
    """
    return load_tokenizer_as("BERT or RoBERTa", folder_or_name, _problem, key=key)


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[list[int]]:
    """Word-piece ids of each text without special tokens, the first `max_length` of them.

    Case is left to the tokenizer: an uncased one lower-cases.
    """
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, truncation=True, max_length=max_length
    ).input_ids
    return ids


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """Special tokens in a pair: 3 for BERT, [CLS] q [SEP] a [SEP]; 4 for RoBERTa, <s> q </s></s> a </s>."""
    count: int = tokenizer.num_special_tokens_to_add(pair=True)
    return count


def frame(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """A batch of pairs, each padded once at the right: int64 tensors of shape (pairs, longest pair).

    input_ids and attention_mask (1 on tokens); for BERT also token_type_ids, 0 up to and including the first [SEP],
    1 after it, 0 on padding.
    """
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    between = [sep] * (special_tokens(tokenizer) - 2)
    longest = max(len(question) + len(answer) for question, answer in pairs) + 2 + len(between)
    input_ids = torch.full((len(pairs), longest), tokenizer.pad_token_id)
    mask, segments = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
    for row, (question, answer) in enumerate(pairs):
        ids = [cls, *question, *between, *answer, sep]
        input_ids[row, : len(ids)] = torch.tensor(ids)
        mask[row, : len(ids)] = 1
        segments[row, len(question) + 2 : len(ids)] = 1
    batch = {"input_ids": input_ids, "attention_mask": mask}
    return batch | {"token_type_ids": segments} if len(between) == 1 else batch


def _problem(tokenizer: PreTrainedTokenizerBase) -> str | None:
    if None in (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id):
        return "it lacks a classification, separator or padding token"
    if special_tokens(tokenizer) not in (3, 4):
        return f"it puts {special_tokens(tokenizer)} special tokens into a pair instead of BERT's 3 or RoBERTa's 4"
    question, answer = encode(tokenizer, _PROBE, 9)
    if not question or not answer or tokenizer.unk_token_id in [*question, *answer]:
        return "it does not know the letters a, b and c"
    framed = frame(tokenizer, [(question, answer)])["input_ids"][0].tolist()
    return None if list(tokenizer(*_PROBE).input_ids) == framed else "it does not frame a pair as BERT or RoBERTa does"
