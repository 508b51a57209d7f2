"""The norm and the largest element of an update: right at any length, and the same bits on any number of threads."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import make_config, make_runner
from hypothesis import given
from hypothesis import strategies as st
from toy import Quadratic

from fedtorch.core import device_norms, kernels
from fedtorch.core.kernels import library
from fedtorch.core.norms import CHUNK, _on_device, copied, norm_and_max

NAN, INF = math.nan, math.inf


def drawn(size: int) -> torch.Tensor:
    """Numbers of very different sizes, as fp32."""
    values = np.random.default_rng(size).standard_normal(size, dtype=np.float32)
    values[::3] *= 1e-3
    return torch.from_numpy(values)


@pytest.mark.long
@pytest.mark.parametrize("size", [10_000_000, pytest.param(60_000_000, marks=pytest.mark.slow)])
def test_a_long_vectors_norm_is_that_of_float64(size: int) -> None:
    vector = drawn(size)
    wide = vector.numpy().astype(np.float64)
    norm, largest = norm_and_max(vector)
    # both add 10^7 rounded numbers in pairs: some ten roundings of 2^-53 one upon the other
    assert norm == pytest.approx(float(np.sqrt(np.add.reduce(wide * wide))), rel=1e-14)
    assert largest == float(np.abs(wide).max())


def test_the_norm_in_a_report_is_that_of_float64(tmp_path: Path) -> None:
    """The client's update has 1.6 million numbers of three sizes, whose squares come to too little in fp32."""
    task = Quadratic(clients={"a": (1.0, 1.0, 3)}, start=(0.3, 0.2, 0.1), width=1 << 19, double=False)
    runner = make_runner(make_config(tmp_path, task, rounds=1))
    runner.run()
    (report,) = runner.context.server.accepted
    update = 0.1 * (np.array([0.3, 0.2, 0.1]) - 1.0)  # the learning rate times the gradient
    assert report.norm == pytest.approx(math.sqrt(float((update**2).sum()) * (1 << 19)), rel=1e-6)  # fp32 weights
    assert report.max_abs == pytest.approx(0.09, rel=1e-6)


def test_the_bits_are_the_same_on_any_number_of_threads() -> None:
    vector = drawn(3 * CHUNK + 17)
    found = norm_and_max(vector)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert norm_and_max(vector) == found
    finally:
        torch.set_num_threads(threads)


@given(st.lists(st.floats(width=64), max_size=5))
def test_both_are_finite_exactly_when_every_element_is(values: list[float]) -> None:
    norm, largest = norm_and_max(torch.tensor(values, dtype=torch.float64))
    if not all(map(math.isfinite, values)):
        assert not math.isfinite(norm) and not math.isfinite(largest)
        return
    assert largest == max(map(abs, values), default=0.0)
    expected = math.hypot(*values)
    assert norm == (expected if math.isinf(expected) else pytest.approx(expected, rel=1e-12))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, CHUNK + 4])
def test_one_bad_element_anywhere_shows(bad: float, place: int) -> None:
    vector = torch.ones(CHUNK + 5)
    vector[place] = bad
    assert not any(map(math.isfinite, norm_and_max(vector)))


def test_extreme_numbers_of_fp32_neither_vanish_nor_overflow() -> None:
    limits = torch.finfo(torch.float32)
    assert norm_and_max(torch.full((4,), -limits.max)) == (2 * limits.max, limits.max)
    tiny = torch.full((4,), 2.0**-149)
    assert norm_and_max(tiny) == (2.0**-148, 2.0**-149)
    assert norm_and_max(torch.zeros(0)) == (0.0, 0.0) == norm_and_max(torch.zeros(3))


def test_extreme_numbers_of_float64_keep_their_digits() -> None:
    """Squares of these are 0 or infinite."""
    for power in (-200, -141, 141, 200):
        vector = torch.tensor([3.0, -4.0], dtype=torch.float64) * 10.0**power
        norm, largest = norm_and_max(vector)
        assert norm == pytest.approx(5 * 10.0**power, rel=1e-15, abs=0) and largest == -float(vector[1])


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_the_largest_of_zeros_has_no_sign(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or reports would have other bytes where the loops in C were not built."""
    monkeypatch.setenv("FEDTORCH_KERNELS", kernels)
    library.cache_clear()
    try:
        for zeros in ([], [0.0], [-0.0], [-0.0, 0.0]):
            assert math.copysign(1.0, norm_and_max(torch.tensor(zeros))[1]) == 1.0
    finally:
        library.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 1, 5, CHUNK + 3, 4 * CHUNK + 77])
@pytest.mark.parametrize("is_native", [True, False])
def test_what_is_copied_has_the_norm_and_the_bits_of_where_it_came_from(
    dtype: torch.dtype, size: int, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(kernels, "function_for", lambda *given: None)
    vector = torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(3))
    out = torch.full((size,), 7.0, dtype=dtype)
    assert copied(vector, out) == norm_and_max(vector)
    assert out.equal(vector)


def test_what_is_measured_of_a_copy_is_what_was_copied() -> None:
    """While another thread, as another process would, changes the memory that it comes from."""
    theirs, out, over = torch.ones(4 * CHUNK), torch.zeros(4 * CHUNK), threading.Event()

    def changes() -> None:
        while not over.is_set():
            theirs.fill_(3.0)
            theirs.fill_(1.0)

    thread = threading.Thread(target=changes)
    thread.start()
    try:
        for _ in range(200):
            assert copied(theirs, out) == norm_and_max(out)
    finally:
        over.set()
        thread.join()


LENGTHS = [0, 1, 5, 8, 9, 127, 128, 129, 137, 200, 257, 1000, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 12_345]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("at_once", [1 << 22, 2 * CHUNK])
def test_a_norm_that_is_added_in_whole_tensors_has_the_same_bits(
    dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_norms, "_AT_ONCE", at_once)
    lengths = [*LENGTHS, *np.random.default_rng(0).integers(1, 2 * CHUNK, 40).tolist()]
    for length in lengths:
        vector = drawn(length).to(dtype)
        assert _on_device(vector) == norm_and_max(vector), length


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [3, CHUNK + 3])
def test_one_number_that_is_not_finite_shows_there_too(value: float, place: int) -> None:
    vector = drawn(CHUNK + 100)
    vector[place] = value
    assert repr(_on_device(vector)) == repr(norm_and_max(vector))


def test_squares_beyond_float64_are_scaled_there_too() -> None:
    vector = drawn(1000).double() * 1e200
    assert _on_device(vector) == norm_and_max(vector) and math.isfinite(norm_and_max(vector)[0])
