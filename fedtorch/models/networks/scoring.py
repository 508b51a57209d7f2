"""Common part of all models that score pairs of a question and an answer."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

Head = Literal["scalar", "two_class"]


class Scorer(nn.Module):
    """f(question, answer). `forward(**batch)` takes what the model's `collate` made.

    head scalar: it returns f, shape (batch,), any real number. head two_class: logits, shape (batch, 2), and f is
    the probability of class 1.
    """

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.num_outputs = 2 if head == "two_class" else 1

    def shaped(self, output: Tensor) -> Tensor:
        """The last layer's output, (batch, num_outputs), as `forward` returns it: in fp32 at least."""
        output = output.float() if output.dtype.itemsize < 4 else output
        return output if self.num_outputs == 2 else output.squeeze(-1)

    def scores(self, output: Tensor) -> Tensor:
        """f, shape (batch,), from what `forward` returned."""
        return output.softmax(-1)[:, 1] if self.num_outputs == 2 else output

    def draw_private(self, seed: int) -> dict[str, Tensor]:
        """A client's own start of its patch, by parameter name; empty for a model without one."""
        return {}


def align(
    attention: Tensor, left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Each side's words as mixtures of the other side's: softmax of `attention` (batch, left, right) over the other.

    left, right: (batch, words, width); the masks (batch, words) are True on words. What padding gets is of no use.
    """
    low = torch.finfo(attention.dtype).min
    from_right = attention.masked_fill(~right_mask.unsqueeze(1), low).softmax(2) @ right
    from_left = attention.masked_fill(~left_mask.unsqueeze(2), low).softmax(1).transpose(1, 2) @ left
    return from_right, from_left


def max_over_words(hidden: Tensor, mask: Tensor) -> Tensor:
    """Largest value of each feature over the words, (batch, words, width) to (batch, width)."""
    return hidden.masked_fill(~mask.unsqueeze(-1), -math.inf).amax(1)


def mean_over_words(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of each feature over the words, (batch, words, width) to (batch, width)."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)
