"""Directions of a seed: Random123's own vectors, and the same bits in C and numpy, whole or in parts."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtorch.core import kernels
from fedtorch.core.direction_model import DirectionModel
from fedtorch.core.directions import UNIT, Kind, add_along, numbers, philox, shift

pytestmark = pytest.mark.processes  # a compiler
ROOT = Path(__file__).parents[2]
ONES, WHOLE = 0xFFFFFFFF, 2**64 - 1
KINDS: list[Kind] = ["sign", "bytes"]
POINTS = np.array([(i % 5) - 1.5 for i in range(64)])  # no combination of a few directions


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library from today's source."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("kernels")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder), "--build-temp", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.rglob("_kernels*.so")
    return kernels.opened(str(path))


@pytest.fixture(params=["c", "numpy"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to compute, one after the other."""
    lib = request.getfixturevalue("built") if request.param == "c" else None
    monkeypatch.setattr(kernels, "library", lambda: lib)
    yield request.param


@pytest.mark.parametrize(
    ("seed", "key", "block", "high", "expected"),
    [
        (0, 0, 0, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ONES, ONES, WHOLE, (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (7, 0, 0, (0, 0), "f4607a2d c009f9dc 1d3aba42 15edac82"),
    ],
)
def test_philox_gives_the_vectors_of_random123(
    seed: int, key: int, block: int, high: tuple[int, int], expected: str
) -> None:
    (words,) = philox(seed, np.array([block], np.uint64), key, high)
    assert " ".join(f"{word:08x}" for word in words) == expected


def test_the_signs_of_a_seed_are_bits_of_its_words(loops: str) -> None:
    zero = np.zeros(15, np.float32)
    shift(zero, "sign", 7, 1.0, zero)
    assert "".join("-+"[int(z > 0)] for z in zero) == "+-++-+---+-++++"
    words = [0xF4607A2D, 0xC009F9DC, 0x1D3ABA42, 0x15EDAC82]
    whole = np.zeros(128)
    add_along(whole, "sign", [7], [1.0])
    assert whole.tolist() == [1.0 if words[i // 32] >> i % 32 & 1 else -1.0 for i in range(128)]


def test_numbers_of_bytes_are_sums_of_the_four_bytes_of_a_word(loops: str) -> None:
    whole = np.zeros(4)
    add_along(whole, "bytes", [7], [1.0])
    words = (0xF4607A2D, 0xC009F9DC, 0x1D3ABA42, 0x15EDAC82)
    assert whole.tolist() == [sum(word.to_bytes(4, "big")) - 510 for word in words]
    many = numbers("bytes", 3, 0, 100_000) / UNIT["bytes"]
    assert abs(many.mean()) < 0.01 and abs(many.var() - 1) < 0.02 and abs((many**4).mean() - 3) < 0.4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_c_and_numpy_give_the_same_bits_of_the_whole_and_of_any_part(
    kind: Kind, dtype: type, built: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    length, found = 70_001, []
    values = np.random.default_rng(1).standard_normal(length).astype(dtype)
    for lib in (built, None):
        monkeypatch.setattr(kernels, "library", lambda lib=lib: lib)
        out, total = np.empty_like(values), np.arange(length, dtype=np.float64)
        shift(values, kind, 12345, 1e-3, out)
        add_along(total, kind, [1, 5, 2**32 - 1], [3.0, -7.0, 2.0**40])
        parts, sums = np.empty_like(values), np.arange(length, dtype=np.float64)
        for start in range(0, length, 1003):
            part = slice(start, start + 1003)
            shift(values[part], kind, 12345, 1e-3, parts[part], start)
            add_along(sums[part], kind, [1, 5, 2**32 - 1], [3.0, -7.0, 2.0**40], start)
        far = np.zeros(300)
        add_along(far, kind, [9], [1.0], 2**40 + 77)
        assert parts.tobytes() == out.tobytes() and sums.tobytes() == total.tobytes()
        found.append((out.tobytes(), total.tobytes(), far.tobytes()))
    assert found[0] == found[1]
    scaled = dtype(1e-3 / UNIT[kind])
    by_hand = values + numbers(kind, 12345, 0, length).astype(dtype) * scaled
    assert by_hand.astype(dtype).tobytes() == found[0][0]


def test_normal_numbers_are_those_of_torch() -> None:
    zero = np.zeros(50, np.float32)
    shift(zero, "normal", 11, 1.0, zero)
    assert zero.tolist() == torch.randn(50, generator=torch.Generator().manual_seed(11)).tolist()


@pytest.mark.parametrize("seeds", [[0], [0, 1, 2, 3], list(range(100))])
def test_weights_are_the_same_whatever_is_added_when(seeds: list[int], loops: str) -> None:
    initial, size = torch.linspace(-1, 1, 1000), len(seeds)
    generator = np.random.default_rng(size)
    sums = [torch.from_numpy(np.rint(generator.standard_normal(size) * 2**30)) for _ in range(4)]
    step, moving = 2.0**-24 * 0.1, DirectionModel("sign", seeds, 2.0**-24 * 0.1)
    for now in (*sums, sums[1], torch.zeros(size, dtype=torch.float64), sums[0]):
        whole = sum(int(a) * numbers("sign", seed, 0, 1000).astype(np.int64) for a, seed in zip(now.tolist(), seeds))
        expected = (initial.double().numpy() - np.asarray(whole) * step).astype(np.float32)
        assert moving.weights(initial, now).numpy().tobytes() == expected.tobytes()
    once = moving.passes
    assert moving.weights(initial, sums[0]) is moving.weights(initial, sums[0].clone()) and moving.passes == once


def test_a_model_that_comes_late_takes_as_many_passes_as_there_are_seeds() -> None:
    seeds, initial = list(range(16)), torch.zeros(64)
    followed, late = (DirectionModel("sign", seeds, 0.5) for _ in range(2))
    sums = torch.zeros(16, dtype=torch.float64)
    for round in range(40):
        sums[round % 16] += round + 1
        followed.weights(initial, sums)
    assert late.weights(initial, sums).tolist() == followed.weights(initial, sums).tolist()
    assert late.passes == 16 and followed.passes == 40
    with pytest.raises(ValueError, match="15 sums were given for 16 directions"):
        late.weights(initial, sums[:15])


@pytest.mark.parametrize(("count", "floor"), [(8, 0.903111), (16, 0.768263), (32, 0.622851), (48, 0.365364), (64, 0.0)])
def test_a_pool_of_k_directions_leaves_what_lies_outside_of_their_span(count: int, floor: float) -> None:
    directions = np.stack([numbers("sign", seed, 0, 64) for seed in range(count)], axis=1)
    found, *_ = np.linalg.lstsq(directions, POINTS, rcond=None)
    left = float(np.sum((POINTS - directions @ found) ** 2) / np.sum(POINTS**2))
    assert left == pytest.approx(floor, abs=5e-7)


def test_sums_of_fp32_depend_on_their_order_and_whole_numbers_do_not() -> None:
    amounts = np.random.default_rng(0).standard_normal(16)
    z = np.stack([numbers("sign", seed, 0, 64) for seed in range(16)])
    narrow = (amounts[:, None] * z).astype(np.float32)
    whole = np.rint(amounts * 2**24)[:, None] * z
    orders = [range(16), range(15, -1, -1)]
    one, other = (sum((narrow[k] for k in order), np.zeros(64, np.float32)) for order in orders)
    assert (one != other).sum() > 20
    one, other = (sum((whole[k] for k in order), np.zeros(64)) for order in orders)
    assert (one == other).all()


def test_signs_take_at_most_25_times_an_addition_of_the_same_numbers(
    built: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "library", lambda: built)
    values = np.random.default_rng(0).standard_normal(2_000_000).astype(np.float32)
    out = np.empty_like(values)

    def seconds(of_signs: bool) -> float:
        started = time.process_time()
        if of_signs:
            shift(values, "sign", 3, 1e-3, out)
        else:
            np.add(values, values, out=out)
        return time.process_time() - started

    ratios = [seconds(True) / max(seconds(False), 1e-6) for _ in range(5)]
    assert min(ratios) < 25, ratios
