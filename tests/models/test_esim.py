"""ESIM: masks, sizes, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedtorch.models.esim import Esim
from fedtorch.models.networks.esim import over_words
from fedtorch.text.words import Words

WORDS = Words(tuple(f"w{i}" for i in range(18)))
SMALL = Esim(embedding=6, hidden=8, dropout=0.0)
PAIRS = [([2, 3, 4], [5, 6, 7, 8, 9]), ([10], [11, 12]), ([1], [2]), ([4, 4, 13, 14], [15])]


@pytest.mark.parametrize("head", ["scalar", "two_class"])
@torch.no_grad()
def test_a_batch_equals_one_by_one_so_padding_changes_nothing(head: str) -> None:
    sizes = replace(SMALL, head=head)  # type: ignore[arg-type]
    model = sizes.build(0, WORDS).double().eval()
    together = model(**sizes.collate(WORDS, PAIRS))
    alone = torch.cat([model(**sizes.collate(WORDS, [pair])) for pair in PAIRS])
    assert together.shape[0] == 4 and torch.allclose(together, alone, rtol=0, atol=1e-12)
    assert model.scores(together).shape == (4,)
    batch = sizes.collate(WORDS, PAIRS)
    for side in ("question", "answer"):  # whatever stands where the padding is
        batch[f"{side}_ids"] = batch[f"{side}_ids"].masked_fill(~batch[f"{side}_mask"], 17)
    assert torch.allclose(model(**batch), together, rtol=0, atol=1e-12)
    batch["answer_mask"] = torch.ones_like(batch["answer_mask"])
    assert not torch.allclose(model(**batch), together, atol=1e-4)


@torch.no_grad()
def test_the_backward_direction_starts_at_the_last_word() -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(2, 3, batch_first=True, bidirectional=True)
    inputs, mask = torch.randn(2, 4, 2), torch.tensor([[True, True, False, False], [True] * 4])
    outputs = over_words(lstm, inputs, mask)
    assert torch.allclose(outputs[0, :2], lstm(inputs[:1, :2])[0][0], atol=1e-6) and not outputs[0, 2:].any()
    assert torch.allclose(outputs[1], lstm(inputs[1:])[0][0], atol=1e-6)


def test_every_parameter_gets_a_gradient() -> None:
    model = SMALL.build(0, WORDS)
    model(**SMALL.collate(WORDS, PAIRS)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_it_learns_eight_pairs() -> None:
    pairs = [([2 + i % 4, 7], [11 + i // 4, 14 + i % 2]) for i in range(8)]
    labels = torch.tensor([i // 4 ^ i % 2 for i in range(8)]).float()
    model = SMALL.build(0, WORDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-2)
    for _ in range(25):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(**SMALL.collate(WORDS, pairs)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_sizes_of_the_papers_network() -> None:
    """Two bidirectional LSTMs of 300 a direction, projection and perceptron, counted by hand."""
    lstm = 2 * (4 * 300 * (300 + 300) + 2 * 4 * 300)
    projection, perceptron = 2400 * 300 + 300, 2400 * 300 + 300 + 300 + 1
    model = Esim().build(0, WORDS)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert sizes.pop("embedding.weight") == 20 * 300
    assert sum(sizes.values()) == 2 * lstm + projection + perceptron


def test_dropout_is_off_in_eval_mode_only() -> None:
    model = replace(SMALL, dropout=0.3).build(0, WORDS)
    batch = SMALL.collate(WORDS, PAIRS)
    assert not torch.equal(model(**batch), model(**batch))
    model.eval()
    assert torch.equal(model(**batch), model(**batch))
