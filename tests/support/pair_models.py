"""What is the same about every model that scores a question and an answer by their words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fedtorch.models.word_model import WordModel
from fedtorch.text.words import Words

WORDS = Words(tuple(f"w{i}" for i in range(18)))
PAIRS = [([2, 3, 4], [5, 6, 7, 8, 9]), ([10], [11, 12]), ([1], [2]), ([4, 4, 13, 14], [15])]


@torch.no_grad()
def check_padding_changes_nothing(sizes: WordModel, seen: float) -> None:
    """A batch equals its pairs one by one; an answer's padding that is not masked changes more than `seen`."""
    model: Any = sizes.build(0, WORDS).double().eval()
    together = model(**sizes.collate(WORDS, PAIRS))
    one_by_one = torch.cat([model(**sizes.collate(WORDS, [pair])) for pair in PAIRS])
    assert together.shape[0] == 4 and torch.allclose(together, one_by_one, rtol=0, atol=1e-12)
    assert model.scores(together).shape == (4,)
    batch = sizes.collate(WORDS, PAIRS)
    for side in ("question", "answer"):  # whatever stands where the padding is
        batch[f"{side}_ids"] = batch[f"{side}_ids"].masked_fill(~batch[f"{side}_mask"], 17)
    assert torch.allclose(model(**batch), together, rtol=0, atol=1e-12)
    batch["answer_mask"] = torch.ones_like(batch["answer_mask"])
    assert not torch.allclose(model(**batch), together, atol=seen)


def check_every_parameter_gets_a_gradient(sizes: WordModel) -> None:
    """Nothing is left out of the scores."""
    model = sizes.build(0, WORDS)
    model(**sizes.collate(WORDS, PAIRS)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def loss_after_learning_eight_pairs(sizes: WordModel, *, lr: float, steps: int) -> float:
    """Of labels that neither the question nor the answer has alone."""
    pairs = [([2 + i % 4, 7], [11 + i // 4, 14 + i % 2]) for i in range(8)]
    labels = torch.tensor([i // 4 ^ i % 2 for i in range(8)]).float()
    model = sizes.build(0, WORDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(**sizes.collate(WORDS, pairs)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


def check_dropout_is_off_in_eval_mode_only(sizes: WordModel) -> None:
    """Two passes differ in training, and are the same to the bit in eval mode."""
    model = replace(sizes, dropout=0.3).build(0, WORDS)
    batch = sizes.collate(WORDS, PAIRS)
    assert not torch.equal(model(**batch), model(**batch))
    model.eval()
    assert torch.equal(model(**batch), model(**batch))
