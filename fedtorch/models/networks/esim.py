"""ESIM (Chen et al. 2017, "Enhanced LSTM for Natural Language Inference"), the sequential model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .scoring import Scorer, align, max_over_words, mean_over_words


class EsimNetwork(Scorer):
    """f of a question and an answer; both go through the same LSTMs."""

    def __init__(self, sizes: Any, embedding: nn.Embedding) -> None:
        super().__init__(sizes.head)
        hidden = sizes.hidden
        self.embedding = embedding
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoding = nn.LSTM(sizes.embedding, hidden, batch_first=True, bidirectional=True)
        self.projection = nn.Sequential(nn.Linear(8 * hidden, hidden), nn.ReLU())
        self.composition = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(
            nn.Dropout(sizes.dropout),
            nn.Linear(8 * hidden, hidden),
            nn.Tanh(),
            nn.Dropout(sizes.dropout),
            nn.Linear(hidden, self.num_outputs),
        )

    def forward(self, question_ids: Tensor, question_mask: Tensor, answer_ids: Tensor, answer_mask: Tensor) -> Tensor:
        """Scores (batch,) or logits (batch, 2) of ids (int64) and masks (bool), each (batch, words)."""
        question = self._encoded(question_ids, question_mask)
        answer = self._encoded(answer_ids, answer_mask)
        attention = question @ answer.transpose(1, 2)
        from_answer, from_question = align(attention, question, answer, question_mask, answer_mask)
        features = [
            *self._composed(question, from_answer, question_mask),
            *self._composed(answer, from_question, answer_mask),
        ]
        return self.shaped(self.head(torch.cat(features, -1)))

    def _encoded(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Input encoding (section 3.1): (batch, words, 2 hidden)."""
        return over_words(self.encoding, self.dropout(self.embedding(ids)), mask)

    def _composed(self, own: Tensor, aligned: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Enhancement, composition (section 3.3), and its mean and maximum over the words, each (batch, 2 hidden)."""
        enhanced = self.projection(torch.cat([own, aligned, own - aligned, own * aligned], -1))
        composed = over_words(self.composition, self.dropout(enhanced), mask)
        return mean_over_words(composed, mask), max_over_words(composed, mask)


def over_words(lstm: nn.LSTM, inputs: Tensor, mask: Tensor) -> Tensor:
    """The LSTM's outputs over the words of each text, 0 on padding: (batch, words, width) to (batch, words, 2 hidden).

    Padding must be at the right, and every text needs a word.
    """
    packed = pack_padded_sequence(inputs, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
    outputs, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=mask.shape[1])
    return outputs
