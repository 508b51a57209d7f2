"""Numbers as 8-bit whole numbers of a power of two, rounded by chance so that their mean is the number itself.

A number x at place i of a vector travels as q in -127..127 and stands for q · 2^e, q = floor(x / 2^e + u). All numbers
of a stretch of the vector have one e, the smallest that reaches the largest of them, so q is never cut off; e travels
as one byte per stretch. u is a function of a seed and of i alone, so whoever rounds, of whatever part of the vector,
gets the same q. q · 2^e is exact in fp32, and so in the whole numbers of the sum (`comm.sums.reproducible`).

u is one of the 2^32 numbers (n + 1/2) / 2^32 with equal chances. So E[q · 2^e] is x exactly where x is a multiple of
2^(e - 32), as is every fp32 number of at least 2^-15 of the stretch's largest, and within 2^(e - 32) of it elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedtorch.core import sparse_kernels

STRETCH = 1 << 12  # places that have one power: a byte for 82 numbers at 1/50; the numbers of a row are of a kind
MOST = 127
NOT_FINITE = 255
"""A stretch's byte where one of its numbers has no power: infinite, NaN, or above 127 · 2^121, which is 3.4e38."""
_LEAST = -132  # the power of byte 1; that of byte 254 is 121: 127 · 2^121 is within fp32, 127 · 2^122 is not
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of SplitMix64 (Steele et al. 2014)
_CHUNK = 1 << 15  # numbers rounded together, so that scratch stays in the cache

Floats = npt.NDArray[np.floating[Any]]
Places = npt.NDArray[np.integer[Any]]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int8]


def stretches(size: int) -> int:
    """How many there are in a vector of `size` numbers: bytes of its powers."""
    return -(-size // STRETCH)


def powers_of(places: Places, values: Floats, size: int) -> Bytes:
    """The byte of every stretch of a vector of `size` numbers that is zero but for `values` at ascending `places`.

    0 where all numbers are zero. Of parts of a vector, the larger byte is that of both together.
    """
    counts = _counts(places, size)
    filled = np.flatnonzero(counts)
    largest = np.zeros(len(counts))
    if len(filled):
        starts = (np.cumsum(counts) - counts)[filled]
        largest[filled] = np.maximum.reduceat(np.abs(values), starts)
    return bytes_of(largest, MOST, _LEAST)


def bytes_of(largest: Floats, most: int, least: int) -> Bytes:
    """The byte of each stretch from its largest magnitude, for q up to `most`, one less than a power of two.

    least: the power of byte 1. 0 where the largest is 0, NOT_FINITE where it has no power.
    """
    shares, powers = np.frexp(largest)  # largest = share · 2^power, share in [0.5, 1); NaN and infinity have power 0
    powers = powers - most.bit_length() + (shares * (most + 1) > most)
    found = np.clip(powers + (1 - least), 1, NOT_FINITE)
    found[largest == 0] = 0
    found[~np.isfinite(largest)] = NOT_FINITE
    return found.astype(np.uint8)


def rounded(places: Places, values: Floats, powers: Bytes, seed: int, *, least: int = _LEAST) -> Codes:
    """q of every number; places: of the vector, ascending. In a stretch without a power it is 1.

    least: the power of byte 1.
    """
    codes = np.empty(len(places), np.int8)
    table = np.ldexp(1.0, -power_of(np.arange(256), least))
    shift = STRETCH.bit_length() - 1
    if STRETCH == 1 << shift and sparse_kernels.round_by_chance(values, places, powers, shift, table, seed, codes):
        return codes
    for start in range(0, len(places), _CHUNK):
        own = slice(start, start + _CHUNK)
        bytes_ = powers[places[own] // STRETCH]
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.multiply(values[own], table[bytes_], dtype=np.float64)
            steps += noise(seed, places[own])
            steps[bytes_ == NOT_FINITE] = 1
        codes[own] = np.floor(steps, out=steps)
    return codes


def widened(places: Places, codes: Codes, powers: Bytes) -> npt.NDArray[np.float32]:
    """q · 2^e of every number, fp32; infinite or NaN in a stretch without a power. places: of the vector.

    Raises:
        ValueError: a q is −128, or not 0 in a stretch whose largest number is.
    """
    table = np.ldexp(np.float32(1), power_of(np.arange(256), _LEAST))
    table[NOT_FINITE] = np.inf
    values = np.empty(len(codes), np.float32)
    shift = STRETCH.bit_length() - 1
    wrong = sparse_kernels.widen_codes(codes, places, powers, shift, table, values) if STRETCH == 1 << shift else None
    if wrong is None:
        own = powers[places // STRETCH]
        wrong = int(np.count_nonzero((codes == -MOST - 1) | ((own == 0) & (codes != 0))))
        with np.errstate(invalid="ignore"):
            np.multiply(table[own], codes, out=values, dtype=np.float32)
    if wrong:
        raise ValueError(
            f"{wrong} numbers of 8 bits that cannot be: {-MOST - 1}, or not zero in a stretch whose largest is zero"
        )
    return values


def noise(seed: int, places: Places) -> npt.NDArray[np.float64]:
    """u of each place: that number of the SplitMix64 sequence from `seed`, its upper 32 bits, and a half."""
    bits = places.astype(np.uint64)
    bits *= np.uint64(_MIX[0])
    bits += np.uint64(seed & (1 << 64) - 1)
    for shift, factor in zip((30, 27), _MIX[1:], strict=True):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    found = (bits >> np.uint64(32)).astype(np.float64)
    found += 0.5
    found *= 2.0**-32
    return found


def _counts(places: Places, size: int) -> npt.NDArray[np.int64]:
    """How many of the ascending places are in each stretch."""
    borders = np.arange(stretches(size) + 1, dtype=np.int64) * STRETCH
    borders = np.minimum(borders, size).astype(places.dtype)  # another dtype would have all places converted
    return np.diff(np.searchsorted(places, borders))


def power_of(bytes_: npt.NDArray[Any], least: int) -> npt.NDArray[np.int64]:
    """The power that each byte stands for; least: of byte 1."""
    return bytes_.astype(np.int64) - 1 + least
