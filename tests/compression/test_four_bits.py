"""Numbers of 4 bits: how much is lost, that two of them share a byte, and that only such messages are read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fewer_bits import layout_of, normal, opened
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtorch.compression import eight_bits, four_bits
from fedtorch.compression.compressors import with_feedback
from fedtorch.compression.four_bits import FourBits
from fedtorch.compression.payload import HEADER_BYTES, PayloadError, assemble, code_of
from fedtorch.compression.settings import ExchangeConfig, Rounding
from fedtorch.core import kernels
from fedtorch.core.errors import ConfigError, RefusedUpdatesError
from fedtorch.core.update import Report

ROUNDINGS: tuple[Rounding, ...] = ("chance", "nearest", "e3m0")
WHOLE = torch.arange(-7.0, 8.0)
POWERS = torch.tensor([0.0, *(sign * 2.0**k for sign in (1, -1) for k in range(-6, 1))])


def back(flat: Tensor, rounding: Rounding = "chance", seed: int = 0) -> Tensor:
    rule, layout = FourBits(rounding), layout_of(len(flat))
    return rule.decompress(rule.compress(flat, layout, seed=seed), layout)


def error_of(found: Tensor, flat: Tensor) -> float:
    return float((found - flat).norm() / flat.norm())


def steps_of(flat: Tensor) -> Tensor:
    """2^e of each whole stretch of 4,096."""
    largest = flat.view(-1, 4096).abs().amax(1)
    return torch.exp2(torch.ceil(torch.log2(largest / 7)))


# --- how much is lost


@pytest.mark.parametrize(("rounding", "share", "usual"), [("chance", 1 / 6, 0.39), ("nearest", 1 / 12, 0.275)])
def test_what_is_lost_is_that_of_steps_of_this_size(rounding: Rounding, share: float, usual: float) -> None:
    """Of a step s: s²/6 in the mean square by chance, s²/12 to the nearest."""
    flat = normal(200 * 4096)
    expected = math.sqrt(float((share * steps_of(flat) ** 2).mean() / (flat**2).mean()))
    assert error_of(back(flat, rounding), flat) == pytest.approx(expected, rel=0.01)
    assert expected == pytest.approx(usual, rel=0.02)


def test_powers_of_two_lose_less_of_normal_numbers() -> None:
    flat = normal(200 * 4096)
    assert error_of(back(flat, "e3m0"), flat) == pytest.approx(0.194, rel=0.01)


def test_the_mean_of_clients_loses_less_by_the_root_of_their_number() -> None:
    flat = normal(20 * 4096)
    mean = torch.stack([back(flat, seed=seed) for seed in range(8)]).mean(0)
    assert error_of(mean, flat) == pytest.approx(error_of(back(flat), flat) / math.sqrt(8), rel=0.02)


def test_a_number_is_rounded_up_as_often_as_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expectation is exact: all of 16 equally likely u, and all numbers of which it is a sixteenth of a step."""
    flat = torch.arange(-7 * 16, 7 * 16 + 1, dtype=torch.float32) / 16
    total = torch.zeros_like(flat)
    monkeypatch.setattr(kernels, "library", lambda: None)
    for place in range(16):
        monkeypatch.setattr(eight_bits, "noise", lambda seed, places, u=(place + 0.5) / 16: np.full(len(places), u))
        total += back(flat)
    assert torch.equal(total / 16, flat)


@pytest.mark.parametrize(("rounding", "levels"), [("nearest", WHOLE / 8), ("e3m0", POWERS)])
def test_it_is_the_nearest_of_what_there_is(rounding: Rounding, levels: Tensor) -> None:
    top = float(levels.max())
    flat = torch.cat([torch.tensor([top]), torch.linspace(-top, top, 4001), levels])
    found = back(flat, rounding)
    assert bool(torch.isin(found, levels).all())
    assert torch.equal((found - flat).abs(), (levels - flat[:, None]).abs().amin(1))


def test_at_a_tie_the_even_whole_number_and_the_larger_power_are_taken() -> None:
    assert back(torch.tensor([7.0, 0.5, 1.5, -2.5]), "nearest").tolist() == [7, 0, 2, -2]
    assert back(torch.tensor([1.0, 0.75, -0.375, 2.0**-7, 2.0**-7 - 2.0**-20]), "e3m0").tolist() == [
        *(1, 1, -0.5, 2.0**-6, 0)
    ]


# --- what travels


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_001])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_half_a_byte_a_number_and_one_for_each_stretch(size: int, rounding: Rounding) -> None:
    rule, layout = FourBits(rounding), layout_of(size)
    message = rule.compress(normal(size), layout)
    assert len(message) == HEADER_BYTES + math.ceil(size / 2) + math.ceil(size / 4096)
    assert rule.message_bytes(layout) == len(message) - HEADER_BYTES
    assert len(rule.decompress(message, layout)) == size


def test_two_codes_lie_in_a_byte_the_first_one_low() -> None:
    message = FourBits("nearest").compress(torch.tensor([7.0, -7, 1]), layout_of(3))
    assert message[HEADER_BYTES:].tolist() == [15 | 1 << 4, 9 | 8 << 4, 129]  # and 2^0 is byte 129


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_number_does_not_depend_on_what_it_is_rounded_with(rounding: Rounding) -> None:
    flat = normal(5 * 4096 + 77)
    whole = back(flat, rounding, 3)
    scaled = torch.cat([flat[:4096] * 1e-6, flat[4096:]])
    assert torch.equal(back(scaled, rounding, 3)[4096:], whole[4096:])


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_batch_is_of_no_meaning(rounding: Rounding, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = normal(5 * 4096 + 77)
    whole = back(flat, rounding, 3)
    monkeypatch.setattr(four_bits, "_BATCH", 2)
    assert torch.equal(back(flat, rounding, 3), whole)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scale", [1.0, 1e-37, 1e-44, 1e30])
def test_the_plain_build_has_the_same_bits(rounding: Rounding, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    flat, layout = normal(9000) * scale, layout_of(9000)
    message = FourBits(rounding).compress(flat, layout, seed=7)
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert torch.equal(FourBits(rounding).compress(flat, layout, seed=7), message)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-7 * 2.0**121, 7 * 2.0**121, width=32), max_size=23).map(torch.tensor), st.integers(0, 99))
@example(torch.tensor([0.0, -0.0, 0, 0, 0, 1e-45, -1e-45, 3e37]), 0)
@example(torch.full((7,), 1e-45), 2)
def test_every_number_is_within_a_step(flat: Tensor, seed: int) -> None:
    flat = flat.float()
    step = 2.0 ** max(math.ceil(math.log2(float(flat.abs().max()) / 7)), -128) if flat.any() else 0.0
    for rounding in ROUNDINGS:
        found = back(flat, rounding, seed).double()
        most = 8 * step if rounding == "e3m0" else step
        assert bool(((found - flat.double()).abs() <= most).all()) and bool(found.isfinite().all())
        assert bool((found * flat >= 0).all()) or rounding == "chance"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_has_no_power_is_not_finite_when_it_is_read(bad: float, rounding: Rounding) -> None:
    flat = torch.ones(4096 * 2)
    flat[5] = bad
    found = back(flat, rounding)
    assert not found[:4096].isfinite().any() and torch.equal(found[4096:], flat[4096:])


def test_nobody_changes_what_was_given() -> None:
    flat = normal(5000)
    before = flat.clone()
    back(flat)
    assert torch.equal(flat, before)


def test_what_cannot_be_is_refused() -> None:
    layout, rule = layout_of(3), FourBits("nearest")
    numbers = (four_bits.PACKED, code_of(torch.float32), 3, 1)

    def read(*body: int, head: tuple[int, int, int, int] = numbers) -> list[float]:
        found: list[float] = rule.decompress(assemble(head, [torch.tensor(body, dtype=torch.uint8)]), layout).tolist()
        return found

    assert read(0x9F, 0x89, 129) == [7, 1, 1]
    for body, why in (
        ((0x90, 0x89, 129), "1 codes of 4 bits that cannot be"),  # code -8
        ((0x9F, 0x99, 129), "1 codes"),  # a number behind the last one
        ((0x88, 0x89, 0), "1 codes"),  # not zero where the largest is
        ((0x9F, 0x89), "expected 3"),
        ((0x9F, 0x89, 129, 0), "expected 3"),
    ):
        with pytest.raises(PayloadError, match=why):
            read(*body)
    for place, other in ((0, 2), (1, 1), (2, 4), (3, 0)):
        head = (*numbers[:place], other, *numbers[place + 1 :])
        with pytest.raises(PayloadError, match="not one of 3 numbers of 4 bits, rounded by nearest"):
            read(0x9F, 0x89, 129, head=head)  # type: ignore[arg-type]


# --- error feedback, and the sum


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_with_feedback_what_was_sent_and_what_is_left_are_all_of_it(rounding: Rounding) -> None:
    layout, rule = layout_of(6000), FourBits(rounding)
    residual, sent, total = None, torch.zeros(6000), torch.zeros(6000)
    for round in range(20):
        flat = normal(6000, round)
        message, residual = with_feedback(rule, flat, residual, True, layout, seed=round)
        sent, total = sent + rule.decompress(message, layout), total + flat
    assert residual is not None
    torch.testing.assert_close(sent + residual, total, atol=2e-5, rtol=0)
    assert float(residual.norm()) < 0.5 * float(total.norm())


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_their_sum_has_the_bits_of_that_of_vectors(rounding: Rounding, tmp_path: Path) -> None:
    vectors = {f"c{number}": normal(9000, number) * 10.0**-number for number in range(5)}
    packed, dense = opened(vectors, tmp_path, FourBits(rounding))
    for weights in ([0.2] * 5, [0.1, 0.0, 0.3, 0.25, 0.35], [-1.0, 2.0, 0.5, 0.0, 1e-3]):
        assert torch.equal(packed.weighted_sum(weights), dense.weighted_sum(weights))
    assert all(map(torch.equal, packed, dense))
    assert (len(packed), packed.round, packed.reports, packed.kept) == (5, 3, dense.reports, {})
    assert packed.is_finite(torch.ones(2)) and not packed.is_finite(torch.tensor([1.0, math.inf]))
    with pytest.raises(ValueError, match="4 weights were given for 5 updates"):
        packed.weighted_sum([0.25] * 4)
    with pytest.raises(ValueError, match=r"not side by side.*exchange.bits to 32"):
        packed.each_window(lambda rows: None)
    with pytest.raises(ValueError, match=r"not side by side.*exchange.bits to 32"):
        packed.combine_windows(lambda rows: rows[0])


def test_who_reports_something_else_is_named_and_so_is_who_sends_nonsense(tmp_path: Path) -> None:
    vectors = {f"c{number}": normal(5000, number) for number in range(4)}
    packed, _ = opened(vectors, tmp_path, FourBits())
    reports = list(packed.reports)
    reports[1] = Report("c1", norm=1.0, max_abs=reports[1].max_abs)
    packed._messages.reports = tuple(reports)
    packed._local.get("c3")[0] = 1
    for weights in ([0.25] * 4, [0.0] * 4):
        with pytest.raises(RefusedUpdatesError) as refused:
            packed.weighted_sum(weights)
        assert refused.value.reasons.keys() == {"c1", "c3"}
        assert "but it reported 1" in refused.value.reasons["c1"] and "cannot be read" in refused.value.reasons["c3"]
    with pytest.raises(RefusedUpdatesError) as refused:
        list(packed)
    assert refused.value.reasons.keys() == {"c1"}


def test_keys_that_nobody_would_use_are_refused() -> None:
    assert ExchangeConfig(bits=4, rounding="e3m0", error_feedback=True).bits == 4
    with pytest.raises(ConfigError, match=r"exchange.rounding is nearest but exchange.bits is 32"):
        ExchangeConfig(rounding="nearest")
    with pytest.raises(ConfigError, match=r"exchange.error_feedback is true but exchange.bits is 32"):
        ExchangeConfig(error_feedback=True)
