"""RE2: its parts by hand, masks, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pair_models import (
    WORDS,
    check_dropout_is_off_in_eval_mode_only,
    check_every_parameter_gets_a_gradient,
    check_padding_changes_nothing,
    loss_after_learning_eight_pairs,
)

from fedtorch.core.errors import ConfigError
from fedtorch.models.networks.re2 import augmented
from fedtorch.models.re2 import Re2

SMALL = Re2(embedding=6, hidden=8, dropout=0.0)


@pytest.mark.parametrize("sizes", [SMALL, replace(SMALL, blocks=1), replace(SMALL, blocks=3, layers=3, kernel=5)])
def test_a_batch_equals_one_by_one_so_padding_changes_nothing(sizes: Re2) -> None:
    check_padding_changes_nothing(sizes, seen=1e-3)


def test_every_parameter_gets_a_gradient() -> None:
    check_every_parameter_gets_a_gradient(replace(SMALL, blocks=3, head="two_class"))


def test_it_learns_eight_pairs() -> None:
    assert loss_after_learning_eight_pairs(SMALL, lr=3e-2, steps=20) < 0.1


def test_sizes_of_the_network_in_fedmatchs_release() -> None:
    """2 blocks, hidden 200, 3 convolutions of kernel 3: counted by hand, with the weight normalisation's scales."""
    model: Any = Re2(hidden=200, layers=3, head="two_class").build(0, WORDS)

    def linear(inputs: int, outputs: int) -> int:
        return inputs * outputs + 2 * outputs  # weights; scales and biases

    def convolution(inputs: int) -> int:
        return 3 * inputs * 200 + 200 + inputs_of_scales

    inputs_of_scales = 200
    total = linear(800, 200) + 200 * 2 + 2 * 2
    for width in (300, 500):
        total += convolution(width) + 2 * convolution(200)
        total += linear(width + 200, 200) + 1
        total += 3 * linear(2 * (width + 200), 200) + linear(600, 200)
    assert sum(p.numel() for name, p in model.named_parameters() if not name.startswith("embedding")) == total
    assert model.embedding.weight.shape == (20, 300)


def test_augmented_residual_by_hand() -> None:
    words, last, before = torch.tensor([[[1.0]]]), torch.tensor([[[2.0]]]), torch.tensor([[[4.0]]])
    assert augmented(words, last, None).tolist() == [[[2.0, 1.0]]]
    assert augmented(words, last, before).flatten().tolist() == pytest.approx([6 * math.sqrt(0.5), 1.0])


@torch.no_grad()
def test_the_temperature_starts_at_one_over_the_root_of_the_width() -> None:
    block: Any = SMALL.build(0, WORDS).get_submodule("blocks.0")
    assert block.alignment.temperature.item() == pytest.approx(1 / math.sqrt(8))


def test_dropout_is_off_in_eval_mode_only() -> None:
    check_dropout_is_off_in_eval_mode_only(SMALL)


def test_an_even_kernel_is_an_error() -> None:
    with pytest.raises(ConfigError, match="model.kernel is 2; set it to an odd number"):
        Re2(kernel=2)
