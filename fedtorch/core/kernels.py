"""Loops over flat vectors in one pass each: in C where `_kernels.c` could be built, else in numpy, with the same bits.

Which of them runs is a matter of time alone. `FEDTORCH_KERNELS=0` in the environment chooses numpy. Both let other
threads run meanwhile and use one thread. Vectors are fp32 or float64, on the CPU, and do not overlap.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

Vector = npt.NDArray[Any]
_POINTER, _SIZE, _DOUBLE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double, ctypes.c_int
_ARGUMENTS = {
    "add_f32": (_POINTER, _POINTER, _SIZE, _DOUBLE, _INT),
    "add_f64": (_POINTER, _POINTER, _SIZE, _DOUBLE, _INT),
    "add_sum": (_POINTER, _POINTER, _SIZE, _INT),
    "result_f32": (_POINTER, _POINTER, _SIZE, _DOUBLE),
    "result_f64": (_POINTER, _POINTER, _SIZE, _DOUBLE),
    "places_of_bits": (_POINTER, _SIZE, _POINTER, _SIZE),
    "scatter_f32": (_POINTER, _POINTER, _SIZE, _POINTER, _DOUBLE, _DOUBLE, _SIZE),
    "scatter_f64": (_POINTER, _POINTER, _SIZE, _POINTER, _DOUBLE, _DOUBLE, _SIZE),
    "norm_f32": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),
    "norm_f64": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),
}
_BYTES = 1 << 14  # of a bitmap looked at together, in numpy
_SUFFIXES = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}


@cache
def library() -> ctypes.CDLL | None:
    """The loops in C; None where they were not built, are not wanted or do not give numpy's bits."""
    found, why = _load()
    log.debug("loops over vectors run in %s", "numpy: " + why if found is None else "C")
    return found


def add_rounded(
    values: Vector, total: Vector, factor: np.float64, work: Vector, *, fresh: bool, measure: bool
) -> float:
    """total += rint(values · factor), or, if it is fresh, total = that; returns the sum of the squares of that.

    total: float64, of the same length. work: float64, at least as long; what is left in it means nothing.
    measure: is the sum of squares wanted? Its last bits differ between C and numpy.
    """
    if (call := _function("add", values, total)) is not None:
        return float(call(values.ctypes.data, total.ctypes.data, len(values), factor, fresh))
    whole = total if fresh else work[: len(values)]
    np.multiply(values, factor, out=whole, dtype=np.float64)  # torch widens into a vector of its own first
    np.rint(whole, out=whole)
    if not fresh:
        np.add(total, whole, out=total)
    return float(np.dot(whole, whole)) if measure else 0.0


def add_sum(sums: Vector, total: Vector, *, fresh: bool, measure: bool) -> float:
    """The same of float64 numbers as they are: total += sums, or total = sums; returns the sum of their squares."""
    lib = library()
    if lib is not None and _fits(sums, total):
        return float(lib.fedtorch_add_sum(sums.ctypes.data, total.ctypes.data, len(sums), fresh))
    if fresh:
        total[:] = sums
    else:
        np.add(total, sums, out=total)
    return float(np.dot(sums, sums)) if measure else 0.0


def write_scaled(total: Vector, out: Vector, factor: np.float64) -> float:
    """out = total · factor, rounded to its dtype, −0.0 as 0.0; returns the sum of the squares of `total`, float64."""
    if (call := _function("result", out, total)) is not None:
        return float(call(total.ctypes.data, out.ctypes.data, len(out), factor))
    np.multiply(total, factor, out=out, casting="same_kind")
    np.add(out, 0.0, out=out)
    return float(np.dot(total, total))


def squares_and_max(values: Vector, chunk: int) -> tuple[npt.NDArray[np.float64], Vector]:
    """Of every `chunk` numbers (sum of the squares, in numpy's order of addition; largest absolute value or NaN)."""
    count = -(-len(values) // chunk)
    squares, largest = np.zeros(count), np.zeros(count, values.dtype)
    if (call := _function("norm", values)) is not None:
        call(values.ctypes.data, len(values), chunk, squares.ctypes.data, largest.ctypes.data)
        return squares, largest
    wide = np.empty(min(len(values), chunk))
    for place in range(count):
        part = values[place * chunk : (place + 1) * chunk]
        largest[place] = np.maximum(np.maximum.reduce(part), -np.minimum.reduce(part))  # NaN if one is
        wide[: len(part)] = part
        square = np.multiply(wide[: len(part)], wide[: len(part)], out=wide[: len(part)])
        squares[place] = np.add.reduce(square)
    return squares, largest


def add_scattered(
    values: Vector, places: Vector, total: Vector, *, factor: np.float64, back: np.float64, start: int
) -> None:
    """total[places − start] += rint(values · factor) · back, float64; places: int32, no two alike, all in `total`."""
    call = _function("scatter", values)
    if call is not None and places.dtype == np.int32 and len(places) == len(values) and _fits(total):
        if _is_plain(places):
            call(values.ctypes.data, places.ctypes.data, len(values), total.ctypes.data, factor, back, start)
            return
    whole = np.multiply(values, factor, dtype=np.float64)
    np.multiply(np.rint(whole, out=whole), back, out=whole)
    total[np.subtract(places, start, dtype=np.int64)] += whole


def places_of_bits(bitmap: Vector, count: int) -> Vector | None:
    """Where the bits of a bitmap of bytes are set, the lowest of a byte first: int32, ascending.

    count: how many are expected; None if they are not as many.
    """
    lib = library()
    if lib is not None and _is_plain(bitmap):
        places = np.empty(count, np.int32)
        found = lib.fedtorch_places_of_bits(bitmap.ctypes.data, len(bitmap), places.ctypes.data, count)
        return places if found == count else None
    pieces = [np.zeros(0, np.int32)]
    for begin in range(0, len(bitmap), _BYTES):  # new memory for a byte per number costs more than the search
        bits = np.unpackbits(bitmap[begin : begin + _BYTES], bitorder="little")
        pieces.append(np.add(np.flatnonzero(bits.view(np.bool_)), 8 * begin, dtype=np.int32, casting="same_kind"))
    places = np.concatenate(pieces)
    return places if len(places) == count else None


def _function(name: str, values: Vector, *wide: Vector) -> Any:
    """The loop in C for vectors of this dtype beside others of float64; None if there is none for them."""
    lib, suffix = library(), _SUFFIXES.get(values.dtype)
    if lib is None or suffix is None or not _fits(*wide) or not _is_plain(values):
        return None
    if any(len(other) != len(values) for other in wide):
        return None  # numpy says what is wrong
    return getattr(lib, f"fedtorch_{name}_{suffix}")


def _fits(*vectors: Vector) -> bool:
    """Are they plain float64 vectors of one length?"""
    plain = all(vector.dtype == np.float64 and _is_plain(vector) for vector in vectors)
    return plain and len({len(vector) for vector in vectors}) <= 1


def _is_plain(vector: Vector) -> bool:
    return bool(vector.ndim == 1 and vector.flags.c_contiguous and vector.flags.aligned)


def _load() -> tuple[ctypes.CDLL | None, str]:
    """(the library or None, why not)."""
    if os.environ.get("FEDTORCH_KERNELS") == "0":
        return None, "FEDTORCH_KERNELS is 0"
    spec = find_spec("fedtorch.core._kernels")
    if spec is None or spec.origin is None:
        return None, "fedtorch/core/_kernels.c was not built when fedtorch was installed, for want of a C compiler"
    try:
        lib = opened(spec.origin)
    except (OSError, AttributeError) as error:
        return None, f"{spec.origin} cannot be used: {error}"
    return (lib, "") if _adds_as_numpy(lib) else (None, "this numpy adds in another order")


def opened(path: str) -> ctypes.CDLL:
    """The loops in a built `_kernels.c`.

    Raises:
        OSError: it is no library of this platform. AttributeError: it lacks a function.
    """
    lib = ctypes.CDLL(path)
    for name, arguments in _ARGUMENTS.items():
        function = getattr(lib, f"fedtorch_{name}")
        function.argtypes, function.restype = arguments, None if name.startswith("norm") else _DOUBLE
    return lib


def _adds_as_numpy(lib: ctypes.CDLL) -> bool:
    """Is numpy's order of addition, which its documentation leaves open, that of the loop in C?"""
    values = np.sin(np.arange(5003, dtype=np.float64))
    found, top = np.zeros(1), np.zeros(1)
    lib.fedtorch_norm_f64(values.ctypes.data, len(values), len(values), found.ctypes.data, top.ctypes.data)
    return bool(found[0] == np.add.reduce(values * values))
