"""ESIM: masks, sizes, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pair_models import (
    WORDS,
    check_dropout_is_off_in_eval_mode_only,
    check_every_parameter_gets_a_gradient,
    check_padding_changes_nothing,
    loss_after_learning_eight_pairs,
)

from fedtorch.models.esim import Esim
from fedtorch.models.networks.esim import over_words

SMALL = Esim(embedding=6, hidden=8, dropout=0.0)


@pytest.mark.parametrize("head", ["scalar", "two_class"])
def test_a_batch_equals_one_by_one_so_padding_changes_nothing(head: str) -> None:
    check_padding_changes_nothing(replace(SMALL, head=head), seen=1e-4)  # type: ignore[arg-type]


@torch.no_grad()
def test_the_backward_direction_starts_at_the_last_word() -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(2, 3, batch_first=True, bidirectional=True)
    inputs, mask = torch.randn(2, 4, 2), torch.tensor([[True, True, False, False], [True] * 4])
    outputs = over_words(lstm, inputs, mask)
    assert torch.allclose(outputs[0, :2], lstm(inputs[:1, :2])[0][0], atol=1e-6) and not outputs[0, 2:].any()
    assert torch.allclose(outputs[1], lstm(inputs[1:])[0][0], atol=1e-6)


def test_every_parameter_gets_a_gradient() -> None:
    check_every_parameter_gets_a_gradient(SMALL)


def test_it_learns_eight_pairs() -> None:
    assert loss_after_learning_eight_pairs(SMALL, lr=5e-2, steps=25) < 0.1


def test_sizes_of_the_papers_network() -> None:
    """Two bidirectional LSTMs of 300 a direction, projection and perceptron, counted by hand."""
    lstm = 2 * (4 * 300 * (300 + 300) + 2 * 4 * 300)
    projection, perceptron = 2400 * 300 + 300, 2400 * 300 + 300 + 300 + 1
    model = Esim().build(0, WORDS)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert sizes.pop("embedding.weight") == 20 * 300
    assert sum(sizes.values()) == 2 * lstm + projection + perceptron


def test_dropout_is_off_in_eval_mode_only() -> None:
    check_dropout_is_off_in_eval_mode_only(SMALL)
