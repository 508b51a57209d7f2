"""How far a student's heads are from a teacher's (FedParsing, eq. 1), and masked words as another unlabelled loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtorch.models.networks.hydranet import HEADS, MASKED, HydraNet, Outputs, encode

ALL_HEADS = (*HEADS, "start", "end")
WITHOUT_COLUMN = ("where_num",)
"""Heads whose answer is about the question alone."""


def probabilities(outputs: Outputs) -> Outputs:
    """Sigmoid of each column function, softmax of the other heads; padding gets exactly 0 in start and end."""
    return {name: logits.sigmoid() if name == "column_func" else logits.softmax(-1) for name, logits in outputs.items()}


def squared_distance(
    student: Outputs, teacher: Outputs, *, heads: Sequence[str] = ALL_HEADS, logits: bool = False, mean: bool = False
) -> Tensor:
    """Squared distance per row, summed over heads, shape (B,); no gradient goes to the teacher.

    logits: of the logits in place of the probabilities. mean: over a head's classes (for start and end: over the
    unmasked positions) in place of the sum over them.
    """
    ours, theirs = (student, teacher) if logits else (probabilities(student), probabilities(teacher))
    total: Tensor | float = 0.0
    for name in heads:
        distance = (ours[name] - theirs[name].detach()).square().sum(-1)
        if mean:
            distance = distance / (teacher[name] > MASKED).sum(-1)
        total = total + distance
    assert isinstance(total, Tensor)
    return total


def mask_words(
    input_ids: Tensor, is_question: Tensor, *, mask_id: int, vocab_size: int, share: float, masked: float, random: float
) -> tuple[Tensor, Tensor]:
    """(input ids with some tokens changed, which were chosen), both (B, T); draws from torch's global generator.

    Of the question's tokens each is chosen with probability `share`; a chosen one becomes the mask with probability
    `masked`, any token of the vocabulary with probability `random`, and stays as it is otherwise.
    """
    chance = torch.rand(2, *input_ids.shape, device=input_ids.device)
    chosen = is_question & (chance[0] < share)
    others = torch.randint(vocab_size, input_ids.shape, device=input_ids.device)
    changed = torch.where(chosen & (chance[1] < masked), mask_id, input_ids)
    replaced = chosen & (chance[1] >= masked) & (chance[1] < masked + random)
    return torch.where(replaced, others, changed), chosen


def masked_word_loss(model: HydraNet, batch: dict[str, Tensor], changed: Tensor, chosen: Tensor) -> tuple[Tensor, int]:
    """(sum of the cross entropies of the chosen tokens, their number but at least 1)."""
    assert model.masked_words is not None
    tokens_BTD, _ = encode(model.encoder, {**batch, "input_ids": changed})
    logits = model.masked_words(tokens_BTD[chosen], model.encoder.get_input_embeddings().weight)
    return F.cross_entropy(logits, batch["input_ids"][chosen], reduction="sum"), max(1, int(chosen.sum()))
