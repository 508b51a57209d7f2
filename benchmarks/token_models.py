"""Models of random tokens, and their losses. Imports torch and transformers alone, as peers' environments do too."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

Family = Literal["t5", "bert", "gpt2"]
NUM_CLASSES = 8


def model_of(family: Family, vocabulary: int, width: int, layers: int, heads: int, length: int) -> Any:
    """A model with random weights from torch's generator as it stands; feed-forward layers are four times the width."""
    if family == "t5":
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=vocabulary,
                d_model=width,
                d_ff=4 * width,
                d_kv=width // heads,
                num_heads=heads,
                num_layers=layers,
                pad_token_id=0,
                decoder_start_token_id=0,
            )
        )
    if family == "bert":
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=vocabulary,
                hidden_size=width,
                intermediate_size=4 * width,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                max_position_embeddings=length,
                num_labels=NUM_CLASSES,
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            n_positions=length,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def loss_of(family: Family, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    """Sum of losses and their number for rows of tokens, shape (rows, length).

    T5 copies the second half of a row after reading the first, BERT finds a class, GPT-2 the next token.
    """
    if family == "bert":
        return model(input_ids=batch, labels=batch[:, 0] % NUM_CLASSES).loss * len(batch), len(batch)
    if family == "t5":
        source, target = (half.contiguous() for half in batch.chunk(2, dim=1))
        return model(input_ids=source, labels=target).loss * target.numel(), target.numel()
    logits = model(input_ids=batch).logits[:, :-1]
    targets = batch[:, 1:]
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()
