"""Directions of random numbers that a seed gives: the same on every machine, any part of one by itself.

Philox4x32-10 (Salmon et al. 2011, as in Random123) with the key (seed, 0). A number's place is its index in the flat
vector, so whoever has a part of the vector makes that part alone. In C where `kernels` has it, else in numpy, with the
same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fedtorch.core import kernels
from fedtorch.core.kernels import Vector

Kind = Literal["sign", "bytes", "normal"]
"""Distribution of the numbers: -1 or +1; the sum of four bytes; torch's normal ones."""
UNIT: dict[Kind, float] = {"sign": 1.0, "bytes": 147.800541, "normal": 1.0}
"""What whole numbers are divided by to have variance 1: that of a sum of four bytes is 21845."""
LARGEST: dict[Kind, int] = {"sign": 1, "bytes": 510, "normal": 1}
"""The largest whole number of a direction."""
SEEDS = 2**32
"""How many seeds there are."""
_SIGNS, _BLOCK = 128, 1 << 16  # numbers of a block of Philox; numbers that numpy looks at together
_WIDTH = np.uint64(32)


def philox(seed: int, blocks: npt.NDArray[np.uint64], key: int = 0, high: tuple[int, int] = (0, 0)) -> Vector:
    """Four words for each counter (block in two words, *high) under the key (seed, key): uint32, shape (blocks, 4)."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1 = blocks & mask, blocks >> _WIDTH
    c2, c3 = (np.full_like(blocks, word) for word in high)
    keys = [seed, key]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (second >> _WIDTH) ^ c1 ^ np.uint64(keys[0]), second & mask
        c2, c3 = (first >> _WIDTH) ^ c3 ^ np.uint64(keys[1]), first & mask
        keys = [(keys[0] + 0x9E3779B9) % SEEDS, (keys[1] + 0xBB67AE85) % SEEDS]
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def numbers(kind: Kind, seed: int, place: int, length: int) -> npt.NDArray[np.float64]:
    """The whole numbers of a direction at `place` and after it; those of `normal` are no whole numbers.

    Without the unit: what they are to be divided by is in `UNIT`.
    """
    if kind == "normal":
        drawn = torch.randn(place + length, generator=torch.Generator().manual_seed(seed))
        return drawn[place:].double().numpy()
    each = _SIGNS if kind == "sign" else 4
    first, last = place // each, -(-(place + length) // each)
    words = philox(seed, np.arange(first, last, dtype=np.uint64))
    if kind == "sign":
        bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
        whole = bits.astype(np.float64) * 2.0 - 1.0
    else:
        whole = words.reshape(-1, 1).view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.int64) - 510.0
    return whole[place - first * each :][:length]


def shift(values: Vector, kind: Kind, seed: int, amount: float, out: Vector, place: int = 0) -> None:
    """out = values + amount · z of a seed, in the vectors' dtype; `out` may be `values`. place: of the first number.

    Each number is multiplied and added in that dtype, and rounded after both.
    """
    scaled = amount / UNIT[kind]
    call = kernels.function_for("shift", values)
    is_plain = values.dtype == out.dtype and values.shape == out.shape and kernels.is_readable(out)
    if call is not None and kind != "normal" and is_plain and out.flags.writeable:
        call(values.ctypes.data, out.ctypes.data, len(values), place, seed, kind == "bytes", scaled)
        return
    narrow = values.dtype.type(scaled)
    for start in range(0, len(values), len(values) if kind == "normal" else _BLOCK):
        part = slice(start, min(start + _BLOCK, len(values)) if kind != "normal" else len(values))
        z = numbers(kind, seed, place + start, part.stop - start).astype(values.dtype)
        np.add(values[part], np.multiply(z, narrow, out=z), out=out[part])


def add_along(total: Vector, kind: Kind, seeds: Sequence[int], amounts: Sequence[float], place: int = 0) -> None:
    """total += Σ amounts_k · z_k without the unit, float64: exact where all are whole numbers below 2^53.

    In one pass over `total`, a block of numbers with all seeds, before the next one. place: of the first number.
    """
    lib = kernels.library()
    if lib is not None and kind != "normal" and kernels.fits(total) and total.flags.writeable:
        keys, factors = np.array(seeds, np.uint32), np.array(amounts, np.float64)
        ends = keys.ctypes.data, factors.ctypes.data, len(keys), kind == "bytes"
        lib.fedtorch_along(total.ctypes.data, len(total), place, *ends)
        return
    block = max(1, len(total)) if kind == "normal" else _BLOCK
    for start in range(0, len(total), block):
        part = total[start : start + block]
        for seed, amount in zip(seeds, amounts, strict=True):
            part += numbers(kind, seed, place + start, len(part)) * amount
