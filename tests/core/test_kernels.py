"""The loops in C, built from the source as it is, against those in numpy: the same bits, whatever the numbers are."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtorch.core import kernels, norms

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
    whole = np.empty(length + 3, dtype)
    whole[3:] = np.where(generator.random(length) < 0.3, special, drawn)
    return whole[seed % 4 : seed % 4 + length] if length else whole[:0]


def summed(values: npt.NDArray[Any], total: npt.NDArray[Any], factor: float, fresh: bool) -> list[npt.NDArray[Any]]:
    """What `add_rounded` and `add_sum` leave, and their sums of squares."""
    first, second, work = total.copy(), total.copy(), np.empty(len(values))
    squares = kernels.add_rounded(values, first, np.float64(factor), work, fresh=fresh, measure=True)
    other = kernels.add_sum(values.astype(np.float64), second, fresh=fresh, measure=True)
    return [first, second, np.array([squares, other])]


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(LENGTHS[:-2]),
    st.integers(0, 1 << 30),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 1.0, -0.3, 2.0**40, 1e-310, 1e300, 2.0**-30]),
)
def test_sums_have_the_same_bits(dtype: Any, length: int, seed: int, fresh: bool, wild: bool, factor: float) -> None:
    values, total = numbers(length, dtype, seed, wild=wild), np.rint(numbers(length, np.float64, seed + 1, wild=wild))
    (first, second, squares), expected = both(lambda: summed(values, total, factor, fresh))
    assert_same_bits(first, expected[0])
    assert_same_bits(second, expected[1])
    np.testing.assert_allclose(squares, expected[2], rtol=1e-12)  # adds in another order
    out = np.empty(length, dtype)
    written, expected_out = both(lambda: (kernels.write_scaled(total, out, np.float64(factor)), out.copy()))
    assert_same_bits(written[1], expected_out[1])
    assert not np.signbit(written[1][written[1] == 0]).any()
    np.testing.assert_allclose(written[0], expected_out[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", LENGTHS)
def test_ties_are_rounded_to_even_at_every_place_and_length(length: int, dtype: Any) -> None:
    values = (np.arange(length) % 4096 - 2048).astype(dtype)
    (first, _, _), _ = both(lambda: summed(values, np.zeros(length), 0.5, True))
    assert first.tolist() == [float(round(x / 2)) for x in values.tolist()]


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LENGTHS), st.integers(0, 1 << 30), st.booleans(), st.sampled_from([1, 5, 100, 1 << 16]))
def test_norms_have_the_same_bits(dtype: Any, length: int, seed: int, wild: bool, chunk: int) -> None:
    values = numbers(min(length, 200 * chunk), dtype, seed, wild=wild)
    (squares, largest), expected = both(lambda: kernels.squares_and_max(values, chunk))
    assert_same_bits(squares, expected[0])
    assert_same_bits(np.abs(largest), np.abs(expected[1]))  # of zeros numpy may give −0.0
    whole, expected_whole = both(lambda: np.array(norms._squares_and_max(values)))
    assert_same_bits(whole, expected_whole)


def test_what_the_loops_in_c_cannot_read_is_left_to_numpy() -> None:
    strided, bytes_ = np.arange(20.0)[::2], np.zeros(81, np.uint8)
    misaligned = bytes_[1:].view(np.float64)
    misaligned[:] = np.arange(10.0)
    for values in (strided, misaligned, np.arange(10, dtype=np.float16)):
        (first, _, _), expected = both(lambda values=values: summed(values, np.zeros(10), 1.0, False))
        assert_same_bits(first, expected[0])
        assert kernels.squares_and_max(values, 4)[1].tolist() == [float(max(values[k : k + 4])) for k in (0, 4, 8)]
    with pytest.raises(ValueError):
        summed(np.zeros(5), np.zeros(4), 1.0, True)


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
        kernels.add_scattered(values, shifted, total, factor=factor, back=back, start=start)
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
    found, in_numpy = both(lambda: kernels.places_of_bits(bitmap, count))
    if count != len(expected):
        assert found is None and in_numpy is None
    else:
        assert found.dtype == in_numpy.dtype == np.int32 and found.tolist() == in_numpy.tolist() == expected
