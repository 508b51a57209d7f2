"""Loops over the few numbers of sparse vectors, as `kernels` has them over whole ones: in C or numpy, the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtorch.core import kernels
from fedtorch.core.kernels import Vector

_BYTES = 1 << 14  # of a bitmap looked at together, in numpy


def add_scattered(
    values: Vector, places: Vector, total: Vector, *, factor: np.float64, back: np.float64, start: int
) -> None:
    """total[places − start] += rint(values · factor) · back, float64; places: int32, no two alike, all in `total`."""
    call = kernels.function_for("scatter", values)
    if call is not None and places.dtype == np.int32 and len(places) == len(values) and kernels.fits(total):
        if kernels.is_readable(places):
            call(values.ctypes.data, places.ctypes.data, len(values), total.ctypes.data, factor, back, start)
            return
    whole = np.multiply(values, factor, dtype=np.float64)
    np.multiply(np.rint(whole, out=whole), back, out=whole)
    total[np.subtract(places, start, dtype=np.int64)] += whole


def sum_scattered(
    terms: Sequence[tuple[Vector, Vector]], factors: Sequence[float], back: np.float64, out: Vector, chunk: int
) -> bool:
    """out = Σ of the terms by `add_scattered`, −0.0 as 0.0; False: there is no C for these, and nothing was done.

    terms: (values of the dtype of `out`, places, ascending int32). chunk: how many numbers of `out` at a time.

    Raises:
        ValueError: places are not in `out`, or go back by more than a chunk has.
    """
    call = kernels.function_for("sum", out)
    for values, places in terms:
        fits = values.dtype == out.dtype and places.dtype == np.int32 and len(values) == len(places)
        if call is None or not fits or not kernels.is_readable(values) or not kernels.is_readable(places):
            return False
    if call is None:
        return False
    values_at, places_at = (np.array([term[side].ctypes.data for term in terms], np.uintp) for side in (0, 1))
    lengths, at = np.array([len(values) for values, _ in terms], np.uintp), np.zeros(len(terms), np.uintp)
    scaled, total = np.array(factors, np.float64), np.empty(min(chunk, len(out)))
    lists = (each.ctypes.data for each in (values_at, places_at, lengths, scaled, at))
    if call(*lists, len(terms), back, total.ctypes.data, chunk, out.ctypes.data, len(out)):
        raise ValueError("places of a sparse vector that are not ascending, or not within the sum")
    return True


def places_of_bits(bitmap: Vector, count: int) -> Vector | None:
    """Where the bits of a bitmap of bytes are set, the lowest of a byte first: int32, ascending.

    count: how many are expected; None if they are not as many.
    """
    lib = kernels.library()
    if lib is not None and kernels.is_readable(bitmap):
        places = np.empty(count, np.int32)
        found = lib.fedtorch_places_of_bits(bitmap.ctypes.data, len(bitmap), places.ctypes.data, count)
        return places if found == count else None
    pieces = [np.zeros(0, np.int32)]
    for begin in range(0, len(bitmap), _BYTES):  # new memory for a byte per number costs more than the search
        bits = np.unpackbits(bitmap[begin : begin + _BYTES], bitorder="little")
        pieces.append(np.add(np.flatnonzero(bits.view(np.bool_)), 8 * begin, dtype=np.int32, casting="same_kind"))
    places = np.concatenate(pieces)
    return places if len(places) == count else None


def reaching(values: Vector, limit: float, chunk: int) -> tuple[Vector, Vector] | None:
    """(places, ascending, int32; the values there) of at least `limit` in magnitude; None if one of all is NaN.

    values: at most 2^31 - 1. chunk: how many are looked at together, in numpy.
    """
    bound = values.dtype.type(limit)
    if (call := kernels.function_for("reaching", values)) is not None:
        # room for all: memory that is not written to costs nothing, and several pieces would have to be joined
        places, passed = np.empty(len(values), np.int32), np.empty(len(values), values.dtype)
        count = int(call(values.ctypes.data, len(values), bound, places.ctypes.data, passed.ctypes.data))
        return None if count < 0 else (places[:count], passed[:count])
    most, found = min(chunk, len(values)), [(np.zeros(0, np.int32), values[:0])]
    magnitudes, mask = np.empty(most, values.dtype), np.empty(most, np.bool_)
    for start in range(0, len(values), chunk):
        part = values[start : start + chunk]
        absolute = np.abs(part, out=magnitudes[: len(part)])
        if np.isnan(absolute.max()):
            return None
        own = np.flatnonzero(np.greater_equal(absolute, bound, out=mask[: len(part)]))
        found.append((np.add(own, start, dtype=np.int32, casting="same_kind"), part[own]))
    return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])


def round_by_chance(
    values: Vector, places: Vector, powers: Vector, shift: int, scales: Vector, seed: int, codes: Vector
) -> bool:
    """codes = floor(values · scales[power] + u), as `eight_bits` has it in numpy; False: there is no C for these.

    The power of a value at place i is powers[i >> shift], uint8; that of 255 has the code 1. scales: float64, of 256.
    """
    call = kernels.function_for("round", values)
    if call is None or not _are_placed(places, powers, shift) or not len(values) == len(places) == len(codes):
        return False
    lists = (powers.ctypes.data, shift, scales.ctypes.data)
    call(values.ctypes.data, places.ctypes.data, len(values), *lists, seed % (1 << 64), codes.ctypes.data)
    return True


def widen_codes(codes: Vector, places: Vector, powers: Vector, shift: int, scales: Vector, out: Vector) -> int | None:
    """out = codes · scales[power], fp32; how many codes are −128, or not 0 with power 0. None: no C for these."""
    lib = kernels.library()
    if lib is None or not _are_placed(places, powers, shift) or not len(codes) == len(places) == len(out):
        return None
    lists = (powers.ctypes.data, shift, scales.ctypes.data)
    return int(lib.fedtorch_widen(codes.ctypes.data, places.ctypes.data, len(codes), *lists, out.ctypes.data))


def _are_placed(places: Vector, powers: Vector, shift: int) -> bool:
    """Are these plain int32, all of them within stretches that have a power?"""
    if places.dtype != np.int32 or not kernels.is_readable(places) or not kernels.is_readable(powers):
        return False
    if not len(places):
        return True
    return bool(places.min() >= 0 and int(places.max()) >> shift < len(powers))
