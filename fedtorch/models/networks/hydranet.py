"""HydraNet: an encoder of (column, question) rows, six heads on it, their loss, and the query they spell.

"Hybrid Ranking Network for Text-to-SQL" (Lyu et al. 2020); details as in its public code. Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Span = tuple[int, int]
"""Positions of the first and the last token."""

Outputs = dict[str, Tensor]
"""Logits: column_func (B, 3), agg (B, 6), op (B, 4), where_num (B, 5), start and end (B, T), -1e6 on padding."""

HEADS = {"column_func": 3, "agg": 6, "op": 4, "where_num": 5}
MASKED = -1e6
SELECT, WHERE, AGG, OP, WHERE_NUM, START, END = range(7)  # columns of the labels, as in `data.hydranet.RowLabels`


class Decoder(nn.Module):
    """The heads: linear layers after dropout; with `attention`, one self-attention layer before them."""

    def __init__(self, width: int, *, dropout: float, attention: bool = False, num_heads: int = 4) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.heads = nn.ModuleDict({name: nn.Linear(width, size) for name, size in HEADS.items()})
        self.span = nn.Linear(width, 2)
        self.attention = nn.MultiheadAttention(width, num_heads, batch_first=True) if attention else None
        self.norm = nn.LayerNorm(width) if attention else None

    def forward(self, tokens_BTD: Tensor, pooled_BD: Tensor, mask_BT: Tensor) -> Outputs:
        """mask: 1 for tokens, 0 for padding."""
        if self.attention is not None and self.norm is not None:
            queries = torch.cat([pooled_BD[:, None], tokens_BTD], dim=1)
            heard, _ = self.attention(
                queries, tokens_BTD, tokens_BTD, key_padding_mask=mask_BT == 0, need_weights=False
            )
            queries = self.norm(queries + heard)
            pooled_BD, tokens_BTD = queries[:, 0], queries[:, 1:]
        tokens_BTD, pooled_BD = self.dropout(tokens_BTD), self.dropout(pooled_BD)
        # in fp32 also where layers compute in 16 bits, which cannot hold MASKED or tell near probabilities apart
        outputs = {name: head(pooled_BD).float() for name, head in self.heads.items()}
        start_BT, end_BT = self.span(tokens_BTD).float().unbind(-1)
        return {**outputs, **masked(start_BT, end_BT, mask_BT)}


class MaskedWordHead(nn.Module):
    """BERT's masked-language-model head over the encoder's own embedding matrix."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        width = embedding.embedding_dim
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    def forward(self, chosen_ND: Tensor, embedding_VD: Tensor) -> Tensor:
        """Logits over the vocabulary (N, V) for N chosen tokens."""
        return F.linear(self.norm(F.gelu(self.dense(chosen_ND))), embedding_VD, self.bias)


class HydraNet(nn.Module):
    """Encoder, decoder (the heads) and, where asked for, a head for masked words; their names start the parameters'."""

    def __init__(self, encoder: Any, *, dropout: float, attention: bool = False, masked_words: bool = False) -> None:
        super().__init__()
        self.settings = {"dropout": dropout, "attention": attention, "masked_words": masked_words}
        self.encoder = encoder
        config = encoder.config
        self.decoder = Decoder(
            config.hidden_size, dropout=dropout, attention=attention, num_heads=config.num_attention_heads
        )
        self.masked_words = MaskedWordHead(encoder.get_input_embeddings()) if masked_words else None

    def forward(self, batch: dict[str, Tensor]) -> Outputs:
        """batch: input_ids, attention_mask, token_type_ids, each (B, T)."""
        return self.decoder(*encode(self.encoder, batch), batch["attention_mask"])


def encode(encoder: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(token vectors (rows, tokens, width), pooled vectors (rows, width)); segments go to encoders that have two."""
    config: Any = encoder.config
    segments = batch["token_type_ids"] if config.type_vocab_size > 1 else None
    output = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], token_type_ids=segments)
    return output.last_hidden_state, output.pooler_output


def masked(start_BT: Tensor, end_BT: Tensor, mask_BT: Tensor) -> Outputs:
    """start and end with -1e6 on padding."""
    return {name: x.masked_fill(mask_BT == 0, MASKED) for name, x in (("start", start_BT), ("end", end_BT))}


def row_losses(outputs: Outputs, labels: Tensor) -> dict[str, Tensor]:
    """The loss of each head, shape (B,) each; a row's loss is their sum. labels: (B, 7) int64, see the constants.

    The aggregation counts in the selected column's row only, the operator in rows with a condition. Of the column
    function the third output is "irrelevant": neither selected nor in a condition.
    """
    select, where = labels[:, SELECT].to(outputs["agg"].dtype), labels[:, WHERE].to(outputs["agg"].dtype)
    wanted = {"select": select, "where": where, "irrelevant": (1 - select) * (1 - where)}
    columns = {
        name: F.binary_cross_entropy_with_logits(outputs["column_func"][:, place], target, reduction="none")
        for place, (name, target) in enumerate(wanted.items())
    }
    classes = {"agg": AGG, "where_num": WHERE_NUM, "op": OP, "start": START, "end": END}
    losses = {
        name: F.cross_entropy(outputs[name], labels[:, place], reduction="none") for name, place in classes.items()
    }
    return {**columns, **losses, "agg": losses["agg"] * select, "op": losses["op"] * where}


class Query(NamedTuple):
    """A decoded query."""

    agg: int
    """aggregation"""
    sel: int
    """selected column"""
    where: tuple[int, ...]
    """columns with a condition, the likeliest first"""
    conditions: dict[int, tuple[int, Span]]
    """*every* column -> (operator, positions)"""


def decode(outputs: Outputs, spans: Sequence[Span], rows_per_question: Sequence[int]) -> list[Query]:
    """The query of each question from its rows' logits, HydraNet's way, without execution.

    spans: per row the first and last position of the question's tokens, the closing special token not among them.
    """
    arrays = {name: logits.detach().float().cpu().numpy() for name, logits in outputs.items()}
    best = best_spans(arrays["start"], arrays["end"], spans)
    queries, first = [], 0
    for count in rows_per_question:
        part = slice(first, first + count)
        queries.append(_decode({name: array[part] for name, array in arrays.items()}, best[part]))
        first += count
    return queries


def _decode(logits: dict[str, NDArray[Any]], best: Sequence[Span]) -> Query:
    """One question: logits of its rows, one per column."""
    columns = logits["column_func"].astype(np.float64)
    sel = int(columns[:, 0].argmax())
    order = np.argsort(-columns[:, 1], kind="stable")
    count = int(where_num_scores(columns[:, 2], logits["where_num"]).argmax())
    operators = logits["op"].argmax(axis=1).tolist()
    conditions = {column: (op, span) for column, (op, span) in enumerate(zip(operators, best, strict=True))}
    return Query(int(logits["agg"][sel].argmax()), sel, tuple(order[:count].tolist()), conditions)


def where_num_scores(irrelevant_B: NDArray[Any], where_num_BN: NDArray[Any]) -> NDArray[np.float64]:
    """Per number of conditions the mean over rows of its log-probability, weighted by the rows' relevance; (N,)."""
    relevance = 1 / (1 + np.exp(irrelevant_B.astype(np.float64)))  # 1 - sigmoid
    logits = where_num_BN.astype(np.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    scores: NDArray[np.float64] = np.average(
        logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), axis=0, weights=relevance + 1e-300
    )
    return scores


def best_spans(start_BT: NDArray[Any], end_BT: NDArray[Any], spans: Sequence[Span]) -> list[Span]:
    """Per row the positions i <= j within `spans` with the largest start_i + end_j; ties go to the earlier ones."""
    found = []
    for start, end, (first, last) in zip(start_BT, end_BT, spans, strict=True):
        size = last + 1 - first
        if size <= 0:  # a question without a token
            found.append((first, first))
            continue
        sums = np.add.outer(start[first : last + 1], end[first : last + 1])
        sums[np.tril_indices(size, -1)] = -np.inf
        i, j = divmod(int(sums.argmax()), size)
        found.append((first + i, first + j))
    return found
