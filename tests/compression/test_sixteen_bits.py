"""Updates of 16 bits a number: the format, limits, what is refused, and the sum over them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from fewer_bits import layout_of, normal, opened
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fedtorch.compression.compressors import with_feedback
from fedtorch.compression.payload import HEADER_BYTES, PayloadError, assemble, code_of
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.compression.sixteen_bits import HALVED, SixteenBits
from fedtorch.core.errors import ConfigError

RULE = SixteenBits()
MOST = 255 * 2.0**120
"""The largest bfloat16."""


def back(flat: Tensor) -> Tensor:
    layout = layout_of(len(flat))
    return RULE.decompress(RULE.compress(flat, layout, seed=3), layout)


def test_two_bytes_a_number() -> None:
    for size in (1, 2, 4097):
        assert RULE.message_bytes(layout_of(size)) == 2 * size
        assert RULE.compress(normal(size), layout_of(size)).numel() == HEADER_BYTES + 2 * size


def test_a_tie_goes_to_the_even_one() -> None:
    """A bfloat16 has eight binary digits: 1 + k/128."""
    flat = torch.tensor([1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 2**-20, -(1 + 3 / 256), 1 / 3, 0.0, -0.0])
    assert back(flat).tolist() == [1.0, 1 + 4 / 256, 1 + 2 / 256, -(1 + 4 / 256), 171 / 512, 0.0, -0.0]


@given(st.lists(st.floats(-MOST, MOST, width=32), min_size=1, max_size=23).map(torch.tensor))
@example(torch.tensor([MOST, -MOST, 1e-45, -1e-45, 2.0**-126]))
def test_every_number_is_within_half_a_step(flat: Tensor) -> None:
    found, flat = back(flat.float()).double(), flat.double()
    step = torch.maximum(flat.abs() * 2.0**-8, torch.tensor(2.0**-134))
    assert bool(((found - flat).abs() <= step).all()) and bool((found * flat >= 0).all())
    assert torch.equal(back(found.float()).double(), found), "what was rounded is not changed again"


def test_it_loses_what_a_fraction_of_seven_bits_loses() -> None:
    """The error of normal numbers, ‖sent − x‖ / ‖x‖: 2^-8/√12 of the scale of a fraction, times its mean square."""
    flat = normal(819_200)
    lost = float((back(flat) - flat).norm() / flat.norm())
    assert lost == pytest.approx(0.00167, abs=2e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_what_is_too_large_is_not_finite_when_it_is_read(bad: float) -> None:
    found = back(torch.tensor([1.0, bad, 2.0]))
    assert not found[1].isfinite() and found[::2].tolist() == [1.0, 2.0]


def test_what_cannot_be_is_refused() -> None:
    layout, numbers = layout_of(3), (HALVED, code_of(torch.bfloat16), 3, 3)
    good = [torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)]
    assert RULE.decompress(assemble(numbers, good), layout).tolist() == [1, 2, 3]
    for place, other in ((0, 8), (1, 1), (2, 4), (3, 2)):
        head = (*numbers[:place], other, *numbers[place + 1 :])
        with pytest.raises(PayloadError, match="not one of 3 numbers of 16 bits"):
            RULE.decompress(assemble(head, good), layout)  # type: ignore[arg-type]
    for body in (good[0][:2], torch.cat([good[0], good[0][:1]])):
        with pytest.raises(PayloadError, match="expected 6"):
            RULE.decompress(assemble(numbers, [body]), layout)


def test_with_feedback_what_was_sent_and_what_is_left_are_all_of_it() -> None:
    layout = layout_of(6000)
    residual, sent, total = None, torch.zeros(6000), torch.zeros(6000)
    for round in range(20):
        flat = normal(6000, round)
        message, residual = with_feedback(RULE, flat, residual, True, layout, seed=round)
        sent, total = sent + RULE.decompress(message, layout), total + flat
    assert residual is not None
    torch.testing.assert_close(sent + residual, total, atol=2e-5, rtol=0)
    assert 0 < float(residual.norm()) < 0.01 * float(total.norm())


def test_their_sum_has_the_bits_of_that_of_vectors(tmp_path: Path) -> None:
    vectors = {f"c{number}": normal(9000, number) * 10.0**-number for number in range(5)}
    updates, plain = opened(vectors, tmp_path, RULE)
    for weights in ([0.2] * 5, [0.1, 0.0, 0.3, 0.25, 0.35], [-1.0, 2.0, 0.5, 0.0, 1e-3]):
        assert torch.equal(updates.weighted_sum(weights), plain.weighted_sum(weights))
    assert all(map(torch.equal, updates, plain)) and not updates.is_finite(torch.tensor([math.inf]))


def test_keys_that_nobody_would_use_are_refused() -> None:
    assert ExchangeConfig(bits=16, error_feedback=True).rounding is None
    with pytest.raises(
        ConfigError, match=r"exchange.rounding is nearest but exchange.bits is 16, where numbers become"
    ):
        ExchangeConfig(bits=16, rounding="nearest")
    with pytest.raises(ConfigError, match=r"exchange.rounding is chance but exchange.bits is 32"):
        ExchangeConfig(rounding="chance")
