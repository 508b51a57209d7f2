"""Values of 8 bits: unbiased, whole multiples of powers of two, nothing lost, and no message that is none is read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.comm.sparse.messages import sum_of_messages
from fedtorch.compression import eight_bits
from fedtorch.compression.compressors import TopK, with_feedback
from fedtorch.compression.payload import (
    HEADER_BYTES,
    PayloadError,
    Sparse,
    assemble,
    decode,
    decode_as_sent,
    encode,
    from_8_bits,
    num_bytes,
)
from fedtorch.core import kernels
from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import seed_for
from fedtorch.core.weights import Layout


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eight_bits, "STRETCH", 5)


def layout_of(size: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout(("w",), ((size,),), dtype)


def sent(flat: Tensor, seed: int = 0) -> Tensor:
    """All numbers of a vector as they come back."""
    size = len(flat)
    return decode(
        encode(Sparse(size, torch.arange(size, dtype=torch.int32), flat), values="int8", seed=seed), size
    ).dense()


def step_of(flat: Tensor) -> float:
    """2^e of a vector within one stretch."""
    return math.ldexp(1.0, math.ceil(math.log2(float(flat.abs().max()) / 127)))


# --- rounding


def test_every_multiple_of_the_grid_is_rounded_up_as_often_as_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expectation is exact: all of 16 equally likely u, and all numbers of which it is a sixteenth of a step."""
    flat = torch.arange(-127 * 16, 127 * 16 + 1, dtype=torch.float32) / 16
    total = torch.zeros_like(flat)
    monkeypatch.setattr(kernels, "library", lambda: None)
    for place in range(16):
        monkeypatch.setattr(eight_bits, "noise", lambda seed, places, u=(place + 0.5) / 16: np.full(len(places), u))
        total += sent(flat)
    assert torch.equal(total / 16, flat)


def test_the_chances_are_equal_and_do_not_depend_on_one_another() -> None:
    drawn = eight_bits.noise(5, np.arange(1 << 20))
    assert 0 < drawn.min() and drawn.max() < 1
    counts = np.histogram(drawn, 256, (0, 1))[0]
    spread = ((counts - 4096) ** 2 / 4096).sum()  # chi-square with 255 degrees of freedom
    assert abs(spread - 255) < 5 * math.sqrt(2 * 255)
    for other in (eight_bits.noise(6, np.arange(1 << 20)), np.roll(drawn, 1)):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 5 / 1024
    assert (eight_bits.noise(5, np.array([7, 99])) == drawn[[7, 99]]).all()


def test_splitmix64_is_the_published_one() -> None:
    """The first outputs from the seed 1234567; place 1 is the first."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = eight_bits.noise(1234567, np.arange(1, 4))
    assert found.tolist() == [((number >> 32) + 0.5) / 2**32 for number in published]


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-30])
def test_the_mean_over_many_seeds_is_the_vector(spread: float) -> None:
    flat = torch.randn(50, generator=torch.Generator().manual_seed(0)) * spread
    flat[0] = 3.7 * spread  # others are far below a step
    flat[1:4] = torch.tensor([1e-3, -1e-3, 1e-2]) * spread
    count, step = 1000, step_of(flat)
    found = torch.stack([sent(flat, seed_for(0, "test", place)) for place in range(count)]).double()
    share = (flat.double() / step) % 1
    sigma = step * (share * (1 - share) / count).sqrt()
    assert bool(((found.mean(0) - flat.double()).abs() <= 4 * sigma + 1e-12 * spread).all())
    assert bool(((found - flat.double()).abs() < step).all())


@pytest.mark.usefixtures("short_stretches")
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-127 * 2.0**121, 127 * 2.0**121, width=32), max_size=23).map(torch.tensor),
    st.integers(0, 2**63 - 1),
)
@example(torch.tensor([0.0, -0.0, 0, 0, 0, 1e-45, -1e-45, 3e38, 127.0, -127.0]), 0)
@example(torch.full((7,), 127 * 2.0**121), 1)
@example(torch.full((7,), 1e-45), 2)
def test_a_number_is_within_a_step_and_a_stretch_fills_its_bytes(flat: Tensor, seed: int) -> None:
    flat = flat.float()
    back = sent(flat, seed).double()
    powers = eight_bits.powers_of(np.arange(len(flat)), flat.numpy(), len(flat))
    for part, found, power in zip(flat.split(5), back.split(5), powers.tolist(), strict=False):
        step = math.ldexp(1.0, power - 133)
        assert bool(((found - part.double()).abs() < step).all()) or power == 0
        assert power > 0 or not part.any()
        assert bool((part.abs() <= 127 * step).all())
        assert power <= 1 or bool((part.abs() > 127 * step / 2).any())  # none finer would do
    whole = torch.tensor([value for value in flat.tolist() if value == round(value) and abs(value) <= 127])
    if len(whole) and whole.abs().max() > 63.5 and len(whole) <= 5:
        assert torch.equal(sent(whole, seed), whole)  # what is a multiple already stays, whatever the chance


def test_zero_and_very_small_and_very_large_numbers() -> None:
    assert torch.equal(sent(torch.zeros(9)), torch.zeros(9))
    assert not torch.signbit(sent(torch.tensor([-0.0, 5]))).any()
    smallest = torch.tensor([2.0**-149, -(2.0**-149)])  # of powers down to 2^-132: rounded by chance, as all
    found = {tuple(sent(smallest, seed).tolist()) for seed in range(100)}
    assert found <= {(a, b) for a in (0.0, 2.0**-132) for b in (0.0, -(2.0**-132))} and (0.0, 0.0) in found
    largest = 127 * 2.0**121 * torch.tensor([1.0, -1.0])
    assert sent(largest).isfinite().all()
    assert sent(torch.zeros(0)).numel() == 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_stretch_that_is_not_finite_does_not_become_finite(value: float) -> None:
    flat = torch.ones(eight_bits.STRETCH + 2)
    flat[1] = value
    back = sent(flat)
    assert not back[1].isfinite() and torch.equal(back[-2:], torch.ones(2))
    wide = sent(torch.tensor([1e300, 1.0], dtype=torch.float64))
    assert not wide[0].isfinite()


def test_each_stretch_has_steps_of_its_own() -> None:
    flat = torch.cat([torch.randn(eight_bits.STRETCH) * scale for scale in (1.0, 1e-6)])
    back = sent(flat)
    assert (back - flat)[eight_bits.STRETCH :].abs().max() < 1e-6 / 16


# --- messages


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.floats(0, 1), st.sampled_from(["auto", "index32", "bitmap"]), st.integers(0, 100))
@pytest.mark.usefixtures("short_stretches")
def test_a_message_has_the_bytes_of_the_formula_and_is_written_again_alike(
    size: int, share: float, encoding: Any, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    k = round(share * size)
    indices = torch.randperm(size, generator=generator)[:k].sort().values.to(torch.int32)
    sparse = Sparse(size, indices, torch.randn(k, generator=generator))
    message = encode(sparse, encoding, "int8", seed=seed)
    index = {"index32": 4 * k, "bitmap": -(-size // 8), "auto": min(4 * k, -(-size // 8))}[encoding]
    assert message.numel() - HEADER_BYTES == k + index + -(-size // 5) == num_bytes(size, k, encoding, 1)
    back = decode(message, size)
    assert torch.equal(back.indices, indices) and back.values.dtype == torch.float32
    for other in (0, 1):  # what is rounded is not rounded again
        assert torch.equal(encode(back, encoding, "int8", seed=other), message)
    assert torch.equal(from_8_bits(decode_as_sent(message, size)).values, back.values)


@pytest.mark.parametrize(("one_in", "scope", "expected"), [(50, "global", 100_245), (12, "tensor", 208_579)])
def test_bytes_of_a_million_numbers(one_in: int, scope: Any, expected: int) -> None:
    top, layout = TopK(ratio=1 / one_in, values="int8", scope=scope), layout_of(1_000_000)
    message = top.compress(torch.randn(layout.size), layout)
    assert message.numel() - HEADER_BYTES == top.message_bytes(layout) == expected
    assert top.kept(layout).values == torch.int8


SOUND = encode(Sparse(20, torch.tensor([3, 5, 19], dtype=torch.int32), torch.tensor([1.0, 2, -3])), "index32", "int8")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(SOUND) * 8 - 1))
def test_a_flipped_bit_is_noticed_or_changes_a_number_and_nothing_else(bit: int) -> None:
    """The header has a check of its own; what changes the numbers is compared with the report (`read_messages`)."""
    broken = SOUND.clone()
    broken[bit // 8] ^= 1 << bit % 8
    try:
        found = decode(broken, 20)
    except PayloadError:
        return
    assert bit >= HEADER_BYTES * 8 and found.indices.numel() == 3 and found.values.dtype == torch.float32
    before = decode(SOUND, 20)
    assert not (torch.equal(found.indices, before.indices) and torch.equal(found.values, before.values))


def codes_of(*codes: int, powers: tuple[int, ...] = (133,), size: int = 20) -> Sparse:
    places = torch.arange(len(codes), dtype=torch.int32)
    return Sparse(size, places, torch.tensor(codes, dtype=torch.int8), torch.tensor(powers, dtype=torch.uint8))


def test_values_that_cannot_be_are_refused() -> None:
    assert decode(encode(codes_of(1, -127)), 20).values.tolist() == [1, -127]
    with pytest.raises(PayloadError, match="1 numbers of 8 bits that cannot be: -128"):
        decode(encode(codes_of(1, -128)), 20)
    with pytest.raises(PayloadError, match="1 numbers of 8 bits .* whose largest is zero"):
        decode(encode(codes_of(1, 0, powers=(0,))), 20)
    with pytest.raises(PayloadError, match="bytes; expected"):
        decode(encode(codes_of(1, 0, powers=(133, 133))), 20)
    with pytest.raises(PayloadError, match="without the powers"):
        decode(encode(Sparse(20, *(getattr(codes_of(1, 0), name) for name in ("indices", "values")))), 20)
    with pytest.raises(PayloadError, match="kind 4"):  # of fp32 there are no powers
        decode(assemble((4, 0, 20, 1), [torch.zeros(1), torch.zeros(1), torch.zeros(1, dtype=torch.uint8)]), 20)
    for short in (SOUND[:-1], torch.cat([SOUND, SOUND[:1]])):
        with pytest.raises(PayloadError, match="whose header says"):
            decode(short, 20)


# --- what is kept


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from([torch.float32, torch.float64]))
def test_what_was_sent_and_what_is_kept_are_what_there_was(seed: int, ratio: float, dtype: torch.dtype) -> None:
    """To the bit where a number is at least half a step; below, what is left has more digits than fp32 has."""
    layout = layout_of(500, dtype)
    flat = torch.randn(500, generator=torch.Generator().manual_seed(seed)).to(dtype)
    top = TopK(ratio=ratio, values="int8")
    message, residual = with_feedback(top, flat, None, True, layout, seed=seed)
    assert residual is not None
    back = top.decompress(message, layout)
    together = back.double() + residual.double()
    exact = (flat.abs() >= step_of(flat) / 2) | (back == 0) | torch.tensor(dtype == torch.float64)
    assert torch.equal(together[exact], flat.double()[exact])
    assert bool(((together - flat.double()).abs() <= step_of(flat) * 2.0**-25).all())


def test_over_many_rounds_nothing_is_lost() -> None:
    layout, top = layout_of(64), TopK(ratio=0.25, values="int8")
    generator = torch.Generator().manual_seed(3)
    residual, total, given_ = None, torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    for round_ in range(200):
        grad = torch.randn(64, generator=generator)
        given_ += grad
        message, residual = with_feedback(top, grad, residual, True, layout, seed=round_)
        total += top.decompress(message, layout)
    assert residual is not None
    torch.testing.assert_close(total + residual, given_, rtol=0, atol=1e-4)
    assert residual.abs().max() < 20  # of sums of 200 numbers


def test_a_sum_of_messages_is_exact() -> None:
    layout, top = layout_of(10_000), TopK(ratio=1.0, values="int8")
    vectors = [torch.randn(10_000, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    messages = [top.compress(vector, layout, seed=place) for place, vector in enumerate(vectors)]
    weights = [0.5, 0.25, 0.125, 2.0, -1.0]
    found = sum_of_messages(messages, weights, lambda m: decode(m, 10_000), torch.empty(10_000))
    expected = sum(w * decode(m, 10_000).dense(torch.float64) for w, m in zip(weights, messages, strict=True))
    assert torch.equal(found, expected.float())  # type: ignore[union-attr]


def test_with_returned_residuals_they_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"server_residual is returned but algorithm\.topk\.values is int8"):
        FedAssistant(
            compression="topk", topk=TopK(values="int8"), server_residual="returned", exchange="star", payload="delta"
        )
