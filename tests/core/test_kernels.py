"""The loops in C, built from the source as it is, against those in numpy: the same bits, whatever the numbers are."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtorch.compression import eight_bits
from fedtorch.core import kernels, norms, sparse_kernels

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
FLOATS = [np.float32, np.float64]
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-45, -1e-40, 5e-324, 1e-310, 2.0**52 + 0.5, 2.0**51 + 0.5, 1e30]
WILD = [math.inf, -math.inf, math.nan, 3.5e38, -1e300, 1.7e308]
LENGTHS = [0, 1, 7, 8, 9, 127, 128, 129, 136, 511, 512, 513, 1000, 4099, (1 << 16) - 1, (1 << 16) + 130]


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    """The library from today's source: what is installed may be older."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("kernels")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder), "--build-temp", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.rglob("_kernels*.so")
    lib = kernels.opened(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "library", lambda: lib)
        yield lib


def both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """(what C says, what numpy says)."""
    with np.errstate(all="ignore"):
        in_c = call()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "library", lambda: None)
            return in_c, call()


def assert_same_bits(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """All but the sign and payload of NaN, which no result keeps."""
    assert found.dtype == expected.dtype and np.array_equal(np.isnan(found), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()


def numbers(length: int, dtype: Any, seed: int, *, wild: bool = False) -> npt.NDArray[Any]:
    """Of all magnitudes, among them special ones; it begins off every border of vector registers."""
    generator = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        drawn = np.ldexp(generator.standard_normal(length), generator.integers(-140, 60, length)).astype(dtype)
        special = generator.choice([*SPECIAL, *(WILD if wild else ())], length).astype(dtype)
    found = np.empty(length + 3, dtype)[seed % 4 :][:length]
    found[:] = np.where(generator.random(length) < 0.3, special, drawn)
    return found


def folded(
    values: Sequence[npt.NDArray[Any]],
    factors: Sequence[float],
    total: npt.NDArray[Any],
    *,
    fresh: bool,
    sums: npt.NDArray[Any] | None = None,
    out: npt.NDArray[Any] | None = None,
    back: float = 1.0,
    piece: int = 1000,
    each: bool = False,
) -> list[npt.NDArray[Any]]:
    """[what is in `total` afterwards, in `out` (nothing without it), the sums of squares].

    each: also those of every one of `values`.
    """
    after, out = total.copy(), None if out is None else out.copy()
    fold = kernels.Fold(values, factors, after, fresh, sums, out, back, each)
    for start in range(0, len(total), piece):
        fold.add(start, min(start + piece, len(total)))
    measured = [fold.last_squares, fold.squares, *(fold.each_squares if each else ())]
    return [after, np.zeros(0) if out is None else out, np.array(measured)]


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=60, deadline=None)
@given(
    length=st.sampled_from(LENGTHS[:-2]),
    seed=st.integers(0, 1 << 30),
    fresh=st.booleans(),
    wild=st.booleans(),
    factors=st.lists(st.sampled_from([0.0, 1.0, -0.3, 2.0**40, 1e-310, 1e300, 2.0**-30]), max_size=3),
    has_sums=st.booleans(),
    has_out=st.booleans(),
    piece=st.sampled_from([7, 512, 1000, 1 << 16]),
)
def test_sums_have_the_same_bits(
    dtype: Any,
    length: int,
    seed: int,
    fresh: bool,
    wild: bool,
    factors: list[float],
    has_sums: bool,
    has_out: bool,
    piece: int,
) -> None:
    values = [numbers(length, dtype, seed + place, wild=wild) for place in range(len(factors))]
    total, sums = (np.rint(numbers(length, np.float64, seed + n, wild=wild)) for n in (10, 11))
    out, back = np.full(length, 7.0, dtype), 2.0**-30
    given_out, given_sums = out if has_out else None, sums if has_sums else None
    found, expected = both(
        lambda: folded(values, factors, total, fresh=fresh, sums=given_sums, out=given_out, back=back, piece=piece)
    )
    for mine, other in zip(found[:2], expected[:2], strict=True):
        assert_same_bits(mine, other)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-12)  # adds in another order
    with np.errstate(all="ignore"):
        by_hand = np.zeros(length) if fresh else total.copy()
        for vector, factor in zip(values, factors, strict=True):
            by_hand = by_hand + np.rint(vector.astype(np.float64) * np.float64(factor))
        by_hand = by_hand + sums if has_sums else by_hand
        if not has_out:
            assert_same_bits(found[0], by_hand)
            return
        assert_same_bits(found[0], total)  # stays as it is
        assert_same_bits(found[1], (by_hand * back).astype(dtype) + dtype(0))
        assert not np.signbit(found[1][found[1] == 0]).any()
        np.testing.assert_allclose(found[2][1], np.dot(by_hand, by_hand), rtol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 513, 4099]), st.integers(0, 1 << 30), st.booleans())
def test_squares_are_of_what_was_added_last(dtype: Any, length: int, seed: int, has_sums: bool) -> None:
    values = [numbers(length, dtype, seed + place) for place in range(2)]
    sums = np.rint(numbers(length, np.float64, seed + 5))
    last = sums if has_sums else np.rint(values[1].astype(np.float64) * 3.0)
    given_sums = sums if has_sums else None
    for found in both(lambda: folded(values, [1.0, 3.0], np.zeros(length), fresh=True, sums=given_sums)):
        np.testing.assert_allclose(found[2], [np.dot(last, last), 0.0], rtol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 513, 4099]), st.integers(0, 1 << 30), st.sampled_from([7, 1000]))
def test_what_each_vector_adds_is_measured(dtype: Any, length: int, seed: int, piece: int) -> None:
    values, factors = [numbers(length, dtype, seed + place) for place in range(3)], [1.0, -3.0, 0.0]
    added = [np.rint(each.astype(np.float64) * factor) for each, factor in zip(values, factors)]
    nothing = np.zeros(length)
    for found in both(lambda: folded(values, factors, nothing, fresh=True, piece=piece, each=True)):
        np.testing.assert_allclose(found[2][2:], [np.dot(one, one) for one in added], rtol=1e-12)
        assert found[2][0] == found[2][4]  # the last one's


def test_a_sum_that_goes_to_its_vector_at_once_needs_no_other() -> None:
    values, out = numbers(1000, np.float32, 3), np.full(1000, 7.0, np.float32)

    def at_once() -> npt.NDArray[Any]:
        fold = kernels.Fold([values], [2.0**30], None, True, out=out, back=2.0**-30)
        fold.add(0, 600)
        fold.add(600, 1000)
        return out.copy()

    with np.errstate(all="ignore"):
        expected = np.rint(values.astype(np.float64) * 2.0**30) * 2.0**-30
        for found in both(at_once):
            assert_same_bits(found, expected.astype(np.float32) + np.float32(0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_past_the_caches_is_written_all_the_same(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "STREAM_BYTES", -1)
    for length, begin in itertools.product([0, 1, 3, 4, 5, 16, 17, 1000, 4099], range(5)):
        values, start = numbers(length, dtype, begin, wild=True), numbers(length, dtype, begin + 1)
        around = np.full(length + 9, 7.0, dtype)
        out = around[begin : begin + length]
        kernels.copy(values, out)
        assert out.tobytes() == values.tobytes(), (length, begin)
        with np.errstate(all="ignore"):
            kernels.difference(start, values, out, 100)
            assert_same_bits(out, start - values)
        assert np.all(around[:begin] == 7.0) and np.all(around[begin + length :] == 7.0), (length, begin)


def test_a_copy_is_of_one_dtype_and_as_long() -> None:
    with pytest.raises(TypeError):
        kernels.copy(np.zeros(3, np.float32), np.zeros(3))
    with pytest.raises(ValueError):
        kernels.copy(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize("dtype", FLOATS)
def test_ties_are_rounded_to_even_at_every_place_and_length(dtype: Any) -> None:
    for length in LENGTHS:
        values = (np.arange(length) % 4096 - 2048).astype(dtype)
        (first, _, _), _ = both(lambda v=values: folded([v], [0.5], np.zeros(len(v)), fresh=True))
        assert first.tolist() == [float(round(x / 2)) for x in values.tolist()], length


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LENGTHS), st.integers(0, 1 << 30), st.booleans(), st.sampled_from([1, 5, 100, 1 << 16]))
def test_norms_have_the_same_bits(dtype: Any, length: int, seed: int, wild: bool, chunk: int) -> None:
    values = numbers(min(length, 200 * chunk), dtype, seed, wild=wild)
    (squares, largest), expected = both(lambda: kernels.squares_and_max(values, chunk))
    assert_same_bits(squares, expected[0])
    assert_same_bits(np.abs(largest), np.abs(expected[1]))  # of zeros numpy may give −0.0
    whole, expected_whole = both(lambda: np.array(norms.norm_and_max(torch.from_numpy(values))))
    assert_same_bits(whole, expected_whole)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(LENGTHS), st.integers(0, 1 << 30), st.booleans(), st.sampled_from([5, 100, 1 << 16]), st.booleans()
)
def test_a_difference_is_measured_as_if_it_were_there_already(
    dtype: Any, length: int, seed: int, wild: bool, chunk: int, in_place: bool
) -> None:
    length = min(length, 200 * chunk)
    start, values = (numbers(length, dtype, seed + place, wild=wild) for place in range(2))

    def measured() -> tuple[Any, Any, Any]:
        taken = values.copy()
        out = taken if in_place else np.full_like(values, 7)
        return (*kernels.difference(start, taken, out, chunk), out)

    (squares, largest, out), expected = both(measured)
    with np.errstate(all="ignore"):
        assert_same_bits(out, start - values)
        for found in ((squares, largest), expected[:2]):
            for one, other in zip(found, kernels.squares_and_max(out, chunk), strict=True):
                assert_same_bits(np.abs(one), np.abs(other))
    assert_same_bits(expected[2], out)
    first, second, there = map(torch.from_numpy, (start, values, np.empty_like(values)))
    with np.errstate(all="ignore"):
        found = np.array(norms.difference(first, second, there))
        assert_same_bits(found, np.array(norms.norm_and_max(there)))
        assert_same_bits(there.numpy(), torch.sub(first, second).numpy())


def test_a_difference_of_unequal_vectors_is_refused() -> None:
    for start, values in ((4, 5), (5, 4)):
        with pytest.raises(ValueError, match=r"numbers; expected equal lengths"):
            kernels.difference(np.zeros(start), np.zeros(values), np.zeros(5), 8)
    strided = np.arange(20.0)[::2]
    (squares, largest), expected = both(lambda: kernels.difference(strided, np.ones(10), np.zeros(10), 4))
    assert squares.tolist() == expected[0].tolist() and largest.tolist() == expected[1].tolist() == [5.0, 13.0, 17.0]


def test_what_the_loops_in_c_cannot_read_is_left_to_numpy() -> None:
    strided, bytes_ = np.arange(20.0)[::2], np.zeros(81, np.uint8)
    misaligned = bytes_[1:].view(np.float64)
    misaligned[:] = np.arange(10.0)
    for values in (strided, misaligned, np.arange(10, dtype=np.float16)):
        (first, _, _), expected = both(lambda values=values: folded([values], [1.0], np.zeros(10), fresh=False))
        assert_same_bits(first, expected[0])
        assert kernels.squares_and_max(values, 4)[1].tolist() == [float(max(values[k : k + 4])) for k in (0, 4, 8)]
    mixed, expected = both(lambda: folded([np.ones(9, np.float32), np.ones(9)], [1.0, 2.0], np.zeros(9), fresh=True))
    assert mixed[0].tolist() == expected[0].tolist() == [3.0] * 9
    with pytest.raises(ValueError, match=r"\[4, 5\] numbers have no sum"):
        folded([np.zeros(5)], [1.0], np.zeros(4), fresh=True)


@pytest.mark.parametrize(("said", "expected"), [("0", "numpy: FEDTORCH_KERNELS is 0"), (None, "")])
def test_the_log_says_which_loops_run(
    said: str | None, expected: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()
    code = "import logging; logging.basicConfig(level=10); from fedtorch.core import kernels; kernels.library()"
    monkeypatch.setenv("FEDTORCH_KERNELS", said) if said else monkeypatch.delenv("FEDTORCH_KERNELS", raising=False)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.count("loops over vectors run in") == 1 and expected in done.stderr


def test_a_library_that_cannot_be_used_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"no library")
    with pytest.raises(OSError):
        kernels.opened(str(tmp_path / "broken.so"))
    spec = SimpleNamespace(origin=str(tmp_path / "broken.so"))
    for found, why in ((None, "was not built"), (spec, "cannot be used")):
        monkeypatch.setattr(kernels, "find_spec", lambda name, found=found: found)
        assert kernels._load()[0] is None and why in kernels._load()[1]


def test_loops_that_were_built_from_another_source_are_not_used(
    built: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("FEDTORCH_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "find_spec", lambda name: SimpleNamespace(origin=built._name))
    assert kernels._load()[0] is not None
    monkeypatch.setattr(kernels.zlib, "crc32", lambda data: 1)
    assert kernels._load()[0] is None and "install fedtorch again" in kernels._load()[1]


def test_another_order_of_addition_is_noticed(built: ctypes.CDLL) -> None:
    def forwards(values: int, length: int, chunk: int, squares: int, largest: int) -> None:
        numbers = (ctypes.c_double * length).from_address(values)
        ctypes.c_double.from_address(squares).value = math.fsum(x * x for x in numbers)

    assert kernels._adds_as_numpy(built)
    other: Any = SimpleNamespace(fedtorch_norm_f64=forwards)
    assert not kernels._adds_as_numpy(other)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), length=st.integers(0, 3000), start=st.integers(0, 10**6))
def test_numbers_at_some_places_are_added_alike(dtype: Any, seed: int, length: int, start: int) -> None:
    generator = np.random.default_rng(seed)
    places = np.flatnonzero(generator.random(length) < 0.3)
    values, before = numbers(len(places), dtype, seed), generator.standard_normal(length)
    factor, back = np.float64(1.3 * 2.0 ** (seed % 40)), np.float64(2.0 ** -(seed % 40))

    def added() -> npt.NDArray[Any]:
        total = before.copy()
        shifted = (places + start).astype(np.int32)
        sparse_kernels.add_scattered(values, shifted, total, factor=factor, back=back, start=start)
        return total

    assert_same_bits(*both(added))
    by_hand = before.copy()
    for place, value in zip(places, values, strict=True):
        by_hand[place] += np.rint(np.float64(value) * factor) * back
    assert_same_bits(added(), by_hand)


@settings(max_examples=60)
@given(st.binary(max_size=300), st.integers(-2, 2))
def test_the_set_bits_of_a_bitmap_are_found_alike(data: bytes, off: int) -> None:
    bitmap = np.frombuffer(data, np.uint8)
    expected = [8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1]
    count = max(0, len(expected) + off)
    found, in_numpy = both(lambda: sparse_kernels.places_of_bits(bitmap, count))
    if count != len(expected):
        assert found is None and in_numpy is None
    else:
        assert found.dtype == in_numpy.dtype == np.int32 and found.tolist() == in_numpy.tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LENGTHS[:-2]), st.integers(0, 1 << 30), st.booleans(), st.sampled_from([0.0, 1e-3, 2.0, math.inf]),
    st.sampled_from([1, 64, 700, 1 << 16]),
)  # fmt: skip
def test_the_numbers_that_reach_a_limit_are_found_alike(
    dtype: Any, length: int, seed: int, wild: bool, limit: float, chunk: int
) -> None:
    values = numbers(length, dtype, seed, wild=wild)
    found, in_numpy = both(lambda: sparse_kernels.reaching(values, limit, chunk))
    assert (found is None) == (in_numpy is None) == bool(np.isnan(values).any())
    if found is not None:
        expected = np.flatnonzero(np.abs(values) >= dtype(limit))
        for places, passed in (found, in_numpy):
            assert places.dtype == np.int32 and places.tolist() == expected.tolist()
            assert_same_bits(passed, values[expected])


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 2000), st.integers(0, (1 << 64) - 1), st.booleans())
def test_numbers_are_rounded_to_8_bits_and_widened_alike(
    dtype: Any, draw: int, length: int, seed: int, wild: bool
) -> None:
    generator = np.random.default_rng(draw)
    places = np.flatnonzero(generator.random(20_000) < length / 20_000).astype(np.int32)
    values = numbers(len(places), dtype, draw, wild=wild)
    powers = eight_bits.powers_of(places, values, 20_000)
    codes, expected = both(lambda: eight_bits.rounded(places, values, powers, seed))
    assert codes.tobytes() == expected.tobytes()
    assert_same_bits(*both(lambda: eight_bits.widened(places, codes, powers)))
    if len(codes):
        at = generator.integers(len(codes))
        codes[at] = -128
        refused, also = both(lambda: _refusal(places, codes, powers))
        assert refused == also != ""
        codes[at], powers[places[at] >> 12] = 1, 0
        refused, also = both(lambda: _refusal(places, codes, powers))
        assert refused == also != ""


def _refusal(*parts: Any) -> str:
    with pytest.raises(ValueError) as found:
        eight_bits.widened(*parts)
    return str(found.value)


def test_places_outside_of_all_stretches_are_not_read() -> None:
    codes, powers, out = np.ones(2, np.int8), np.ones(1, np.uint8), np.zeros(2, np.float32)
    for places in ([-1, 0], [0, 4096]):
        at = np.array(places, np.int32)
        assert sparse_kernels.widen_codes(codes, at, powers, 12, np.ones(256, np.float32), out) is None
        assert not sparse_kernels.round_by_chance(out, at, powers, 12, np.ones(256), 0, codes)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3000), st.integers(0, 5), st.sampled_from([1, 64, 1000, 1 << 17]))
def test_a_sum_of_terms_at_some_places_is_that_of_one_after_the_other(
    dtype: Any, seed: int, length: int, terms: int, chunk: int
) -> None:
    generator = np.random.default_rng(seed)
    places = [np.flatnonzero(generator.random(length) < 0.3).astype(np.int32) for _ in range(terms)]
    pairs = [(numbers(len(own), dtype, seed + place), own) for place, own in enumerate(places)]
    factors, back = generator.standard_normal(terms) * 2.0 ** (seed % 40), np.float64(2.0 ** -(seed % 40))
    out, total = np.full(length, np.nan, dtype), np.zeros(length)
    assert sparse_kernels.sum_scattered(pairs, factors.tolist(), back, out, chunk)
    for (values, own), factor in zip(pairs, factors, strict=True):
        sparse_kernels.add_scattered(values, own, total, factor=factor, back=back, start=0)
    with np.errstate(over="ignore"):
        assert_same_bits(out, total.astype(dtype) + dtype(0))
    assert not np.signbit(out[out == 0]).any()


@pytest.mark.parametrize("places", [[5, 2], [0, 10], [-1, 2], [4, 4, 1]])
def test_places_that_are_not_ascending_or_outside_are_refused(places: list[int]) -> None:
    term = np.ones(len(places), np.float32), np.array(places, np.int32)
    with pytest.raises(ValueError, match="not ascending, or not within the sum"):
        sparse_kernels.sum_scattered([term], [1.0], np.float64(1), np.zeros(10, np.float32), 4)


def test_terms_that_the_loop_in_c_cannot_read_are_left_to_others() -> None:
    out, places = np.zeros(10, np.float32), np.arange(3, dtype=np.int32)
    for term in ((np.ones(3), places), (np.ones(2, np.float32), places), (np.ones(3, np.float32), np.arange(3))):
        assert not sparse_kernels.sum_scattered([term], [1.0], np.float64(1), out, 4)
    assert sparse_kernels.sum_scattered([], [], np.float64(1), out[:0], 4)
