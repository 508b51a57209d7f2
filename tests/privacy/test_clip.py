"""An update as whole numbers: how long they can be, in exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.core.errors import UpdateError
from fedtorch.privacy.clip import bound, exponent_of

NUMBERS = (
    st.floats(-1e6, 1e6, width=32)
    | st.floats(-(2.0**-20), 2.0**-20, width=32)
    | st.sampled_from([0.0, -0.0, 3e38, -3e38])
)
CLIPS = st.floats(1e-12, 1e12) | st.sampled_from([0.25, 0.5, 1.0, 2.0**20])
CLIENTS = st.integers(1, 2**24)
LOUDEST = 1000
"""The largest `privacy.noise_multiplier`."""


def whole_numbers(update: torch.Tensor, exponent: int) -> list[int]:
    """The numbers times 2^exponent; each is whole."""
    found = [Fraction(float(value)) * Fraction(2) ** exponent for value in update]
    assert all(number.denominator == 1 for number in found)
    return [int(number) for number in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@examples(60)
@given(values=st.lists(NUMBERS, max_size=40), clip=CLIPS, clients=CLIENTS)
def test_no_update_is_longer_than_the_clip_in_exact_integers(
    dtype: torch.dtype, values: list[float], clip: float, clients: int
) -> None:
    update, exponent = torch.tensor(values, dtype=dtype), exponent_of(clip, clients)
    before = update.clone()
    norm = bound(update, clip, exponent)
    whole = whole_numbers(update, exponent)
    assert sum(k * k for k in whole) <= Fraction(clip) ** 2 * Fraction(4) ** exponent
    assert norm == pytest.approx(math.hypot(*map(float, before)), rel=1e-12)
    assert all(abs(float(u)) <= abs(float(b)) and float(u) * float(b) >= 0 for u, b in zip(update, before, strict=True))
    assert clients * clip * 2.0**exponent <= 2**51 and clip * 2.0**exponent <= 2**32
    assert (clients + 12 * LOUDEST) * clip * 2.0**exponent < 2**52  # with 12 standard deviations of noise
    assert not any(math.copysign(1, float(u)) < 0 for u in update if u == 0)


@pytest.mark.parametrize(
    ("clip", "clients", "exponent"),
    [(1.0, 1, 32), (0.5, 1, 33), (0.75, 1, 32), (1.5, 1, 31), (1.0, 2**19, 32), (1.0, 2**20, 31), (0.5, 2**24, 28)],
)
def test_the_step_is_as_fine_as_the_clip_and_the_number_of_clients_allow(
    clip: float, clients: int, exponent: int
) -> None:
    assert exponent_of(clip, clients) == exponent
    assert clip * 2.0 ** (exponent + 1) > 2**32 or clients * clip * 2.0 ** (exponent + 1) > 2**51


@pytest.mark.parametrize("share", [1 - 2.0**-40, 1.0, 1 + 2.0**-40, 1 + 2.0**-25])
def test_one_within_a_rounding_of_the_clip_is_not_longer_than_it(share: float) -> None:
    update = torch.tensor([-share], dtype=torch.float64)
    bound(update, 1.0, 60)  # finer than any `exponent_of`, so that a part of 2^-40 is seen
    assert 1 - 2.0**-23 <= -float(update) <= 1


def test_one_that_is_short_enough_keeps_its_numbers_to_a_step() -> None:
    update = torch.linspace(-0.01, 0.01, 1001)
    before, exponent = update.clone(), exponent_of(1.0, 100)
    bound(update, 1.0, exponent)
    assert float((update - before).abs().max()) <= 2.0**-exponent


def test_one_that_is_too_long_keeps_its_direction_and_nearly_the_clip() -> None:
    update = torch.from_numpy(np.random.default_rng(0).standard_normal(100_000).astype(np.float32))
    before = update.clone()
    norm = bound(update, 0.5, exponent_of(0.5, 100))
    assert norm > 300 and float(update.double().norm()) == pytest.approx(0.5, rel=1e-6)
    assert float(torch.dot(update, before) / update.norm() / before.norm()) == pytest.approx(1, abs=1e-5)


def test_a_long_vector_is_bound_across_its_windows() -> None:
    update = torch.full((70_001,), 0.1)
    bound(update, 1.0, exponent := exponent_of(1.0, 10))
    assert sum(k * k for k in whole_numbers(update, exponent)) <= 4**exponent
    assert len(set(update.tolist())) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_no_update(bad: float) -> None:
    with pytest.raises(UpdateError, match="not finite"):
        bound(torch.tensor([1.0, bad]), 1.0, 32)
