"""RE2 (Yang et al. 2019, "Simple and Effective Text Matching with Richer Alignment Features")."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from .scoring import Scorer, align, max_over_words


class Re2Network(Scorer):
    """f of a question and an answer; both go through the same blocks."""

    def __init__(self, sizes: Any, embedding: nn.Embedding) -> None:
        super().__init__(sizes.head)
        self.embedding = embedding
        self.blocks = nn.ModuleList(Block(sizes, first=number == 0) for number in range(sizes.blocks))
        self.dropout = nn.Dropout(sizes.dropout)
        self.head = nn.Sequential(
            nn.Dropout(sizes.dropout),
            linear(4 * sizes.hidden, sizes.hidden, gain=2),
            nn.GELU(),
            nn.Dropout(sizes.dropout),
            linear(sizes.hidden, self.num_outputs, gain=1),
        )

    def forward(self, question_ids: Tensor, question_mask: Tensor, answer_ids: Tensor, answer_mask: Tensor) -> Tensor:
        """Scores (batch,) or logits (batch, 2) of ids (int64) and masks (bool), each (batch, words)."""
        words = [self.dropout(self.embedding(ids)) for ids in (question_ids, answer_ids)]
        inputs, outputs = words, self.blocks[0](*words, question_mask, answer_mask)
        before: list[Tensor] | None = None
        for block in list(self.blocks)[1:]:
            inputs = [augmented(*parts) for parts in zip(words, outputs, before or (None, None), strict=True)]
            before, outputs = outputs, block(*inputs, question_mask, answer_mask)
        question, answer = max_over_words(outputs[0], question_mask), max_over_words(outputs[1], answer_mask)
        return self.shaped(self.head(torch.cat([question, answer, question - answer, question * answer], -1)))


class Block(nn.Module):
    """Encoder, alignment and fusion: two texts (batch, words, width) to two of width `hidden`."""

    def __init__(self, sizes: Any, *, first: bool) -> None:
        super().__init__()
        width = sizes.embedding + (0 if first else sizes.hidden)
        self.encoder = Encoder(sizes, width)
        self.alignment = Alignment(sizes, width + sizes.hidden)
        self.fusion = Fusion(sizes, width + sizes.hidden)

    def forward(self, left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor) -> list[Tensor]:
        left = torch.cat([left, self.encoder(left, left_mask)], -1)
        right = torch.cat([right, self.encoder(right, right_mask)], -1)
        from_right, from_left = self.alignment(left, right, left_mask, right_mask)
        return [self.fusion(left, from_right), self.fusion(right, from_left)]


class Encoder(nn.Module):
    """Convolutions over the words, each with GELU; padding is set to 0 before each of them."""

    def __init__(self, sizes: Any, width: int) -> None:
        super().__init__()
        widths = [width] + [sizes.hidden] * (sizes.layers - 1)
        self.convolutions = nn.ModuleList(convolution(w, sizes.hidden, sizes.kernel) for w in widths)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        hidden, words = hidden.transpose(1, 2), mask.unsqueeze(1)
        for convolution in self.convolutions:
            hidden = self.dropout(nn.functional.gelu(convolution(hidden * words)))
        return hidden.transpose(1, 2)


class Alignment(nn.Module):
    """Soft alignment by F(a).F(b) times a learned temperature, with F a linear map and GELU."""

    def __init__(self, sizes: Any, width: int) -> None:
        super().__init__()
        self.projection = nn.Sequential(nn.Dropout(sizes.dropout), linear(width, sizes.hidden, gain=2), nn.GELU())
        self.temperature = nn.Parameter(torch.tensor(1 / math.sqrt(sizes.hidden)))

    def forward(self, left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.projection(left) @ self.projection(right).transpose(1, 2) * self.temperature
        return align(attention, left, right, left_mask, right_mask)


class Fusion(nn.Module):
    """Full fusion: G([G1([x; y]); G2([x; x - y]); G3([x; x * y])]), each G a linear map and GELU."""

    def __init__(self, sizes: Any, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(linear(2 * width, sizes.hidden, gain=2) for _ in range(3))
        self.whole = linear(3 * sizes.hidden, sizes.hidden, gain=2)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, own: Tensor, aligned: Tensor) -> Tensor:
        others = (aligned, own - aligned, own * aligned)
        parts = [
            nn.functional.gelu(part(torch.cat([own, other], -1)))
            for part, other in zip(self.parts, others, strict=True)
        ]
        return nn.functional.gelu(self.whole(self.dropout(torch.cat(parts, -1))))


def augmented(words: Tensor, last: Tensor, before: Tensor | None) -> Tensor:
    """A later block's input: [o_(n-1) + o_(n-2); word vectors], the sum over sqrt 2; o_0 is nothing."""
    return torch.cat([last if before is None else (last + before) * math.sqrt(0.5), words], -1)


def linear(inputs: int, outputs: int, *, gain: float) -> nn.Module:
    """A weight-normalised linear map, weights N(0, sqrt(gain / inputs)), biases 0; gain 2 if a GELU follows."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=math.sqrt(gain / inputs))
    nn.init.zeros_(layer.bias)
    return weight_norm(layer)


def convolution(inputs: int, outputs: int, kernel: int) -> nn.Module:
    """A weight-normalised convolution that keeps the number of words, weights N(0, sqrt(2 / (inputs kernel)))."""
    layer = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (inputs * kernel)))
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return weight_norm(layer)
