"""Loops over flat vectors in one pass each: in C where `_kernels.c` could be built, else in numpy, with the same bits.

Which of them runs is a matter of time alone. `FEDTORCH_KERNELS=0` in the environment chooses numpy. Both let other
threads run meanwhile and use one thread. Vectors are fp32 or float64, on the CPU, and do not overlap.
"""

from __future__ import annotations

import ctypes
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtorch.core.prime import P, Words

log = logging.getLogger(__name__)

Vector = npt.NDArray[Any]
_POINTER, _SIZE, _DOUBLE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double, ctypes.c_int
STREAM_BYTES = 16 << 20
"""A vector that is longer is written past the caches: little of it would still be there when it is read."""
_FOLD = (_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _INT, _POINTER, _DOUBLE, _INT, _SIZE, _SIZE, _POINTER)
_DIFFERENCE = (_POINTER, _POINTER, _POINTER, _INT, _SIZE, _SIZE, _POINTER, _POINTER)
_SHIFT = (_POINTER, _POINTER, _SIZE, ctypes.c_uint64, ctypes.c_uint32, _INT, _DOUBLE)
_ARGUMENTS = {
    "source": (),
    "copy": (_POINTER, _POINTER, _SIZE),
    "fold_f32": _FOLD,
    "fold_f64": _FOLD,
    "places_of_bits": (_POINTER, _SIZE, _POINTER, _SIZE),
    "scatter_f32": (_POINTER, _POINTER, _SIZE, _POINTER, _DOUBLE, _DOUBLE, _SIZE),
    "scatter_f64": (_POINTER, _POINTER, _SIZE, _POINTER, _DOUBLE, _DOUBLE, _SIZE),
    "sum_f32": (*(_POINTER,) * 5, _SIZE, _DOUBLE, _POINTER, _SIZE, _POINTER, _SIZE),
    "sum_f64": (*(_POINTER,) * 5, _SIZE, _DOUBLE, _POINTER, _SIZE, _POINTER, _SIZE),
    "reaching_f32": (_POINTER, _SIZE, _DOUBLE, _POINTER, _POINTER),
    "reaching_f64": (_POINTER, _SIZE, _DOUBLE, _POINTER, _POINTER),
    "round_f32": (_POINTER, _POINTER, _SIZE, _POINTER, _INT, _POINTER, ctypes.c_uint64, _POINTER),
    "round_f64": (_POINTER, _POINTER, _SIZE, _POINTER, _INT, _POINTER, ctypes.c_uint64, _POINTER),
    "widen": (_POINTER, _POINTER, _SIZE, _POINTER, _INT, _POINTER, _POINTER),
    "tags": (_POINTER, _POINTER, _SIZE, _SIZE, _POINTER),
    "norm_f32": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),
    "norm_f64": (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),
    "norm_difference_f32": _DIFFERENCE,
    "norm_difference_f64": _DIFFERENCE,
    "shift_f32": _SHIFT,
    "shift_f64": _SHIFT,
    "along": (_POINTER, _SIZE, ctypes.c_uint64, _POINTER, _POINTER, _SIZE, _INT),
}
_NOTHING = ("norm", "fold", "copy", "shift", "along")
"""How the names of functions begin that return nothing; others return a double."""
_SUFFIXES = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}


@cache
def library() -> ctypes.CDLL | None:
    """The loops in C; None where they were not built, are not wanted or do not give numpy's bits."""
    found, why = _load()
    log.debug("loops over vectors run in %s", "numpy: " + why if found is None else "C")
    return found


@dataclass
class Fold:
    """A sum of whole numbers that grows, part by part: total (+)= Σ rint(values · factor), + sums.

    With `out` the sum is written there and not to `total`: times `back`, rounded to its dtype, −0.0 as 0.0. All vectors
    have one length; `total` may be None only where the sum is fresh and goes to `out`.
    """

    values: Sequence[Vector]
    """Of one dtype, that of `out`."""
    factors: Sequence[float]
    """Of each of them."""
    total: Vector | None
    """float64."""
    fresh: bool
    """Is what `total` holds nothing to add to?"""
    sums: Vector | None = None
    """Whole numbers in float64, added as they are."""
    out: Vector | None = None
    """Written in place of `total`; None: the sum goes on growing in `total`."""
    back: float = 1.0
    """What the finished sum is multiplied by."""
    measures_each: bool = False
    """Is what every one of `values` adds measured?"""
    last_squares: float = 0.0
    """Σ of the squares of what was added last: of `sums`, else of the last of `values`. Its last bits differ between C
    and numpy."""
    each_squares: list[float] = field(default_factory=list)
    """The same of every one of `values`, with `measures_each`."""
    squares: float = 0.0
    """The same of the whole sum, where it goes to `out`."""

    def __post_init__(self) -> None:
        wide = [vector for vector in (self.total, self.sums) if vector is not None]
        narrow = [*self.values, *([] if self.out is None else [self.out])]
        if len({len(vector) for vector in (*wide, *narrow)}) > 1:
            raise ValueError(f"vectors of {[len(vector) for vector in (*wide, *narrow)]} numbers have no sum")
        suffix = _SUFFIXES.get(narrow[0].dtype) if narrow else "f64"
        lib, is_plain = library(), fits(*wide) and all(map(is_readable, narrow))
        self._call: Any = None
        self.each_squares = [0.0] * len(self.values)
        if lib is not None and suffix and is_plain and len({vector.dtype for vector in narrow}) <= 1:
            count, self._squares = len(self.values), (_DOUBLE * (len(self.values) + 2))()
            self._call = getattr(lib, f"fedtorch_fold_{suffix}")
            places = (_POINTER * count)(*map(_start, self.values))
            of_values = places, (_DOUBLE * count)(*self.factors), count
            of_out = _start(self.out), self.back, self.measures_each
            self._given = *of_values, _start(self.sums), _start(self.total), self.fresh, *of_out

    def add(self, start: int, stop: int) -> None:
        """Do it for these elements."""
        if self._call is not None:
            self._call(*self._given, start, stop, self._squares)
            *each, of_sums, of_all = self._squares
            self._see(each, of_sums, of_all)
        else:
            self._add_in_numpy(slice(start, stop))

    def _add_in_numpy(self, part: slice) -> None:
        total = np.zeros(part.stop - part.start) if self.total is None else self.total[part]
        if self.out is not None:
            total = total.copy()
        if self.fresh:
            total[:] = 0.0
        each, of_sums, of_all = [0.0] * len(self.values), 0.0, 0.0
        for place, (vector, factor) in enumerate(zip(self.values, self.factors, strict=True)):
            added = np.multiply(vector[part], np.float64(factor), dtype=np.float64)  # torch widens a copy of it first
            np.add(total, np.rint(added, out=added), out=total)
            if self.measures_each or (place + 1 == len(self.values) and self.sums is None):
                each[place] = float(np.dot(added, added))
        if self.sums is not None:
            sums = self.sums[part].copy()  # read once, as another process may write there meanwhile
            np.add(total, sums, out=total)
            of_sums = float(np.dot(sums, sums))
        if self.out is not None:
            of_all = float(np.dot(total, total))
            out = self.out[part]
            np.multiply(total, np.float64(self.back), out=out, casting="same_kind")
            np.add(out, 0.0, out=out)
        self._see(each, of_sums, of_all)

    def _see(self, each: Sequence[float], of_sums: float, of_all: float) -> None:
        self.squares += of_all
        if self.sums is not None:
            self.last_squares += of_sums
        elif each:
            self.last_squares += each[-1]
        if self.measures_each:
            self.each_squares = [sum(pair) for pair in zip(self.each_squares, each, strict=True)]


def _start(vector: Vector | None) -> int | None:
    return None if vector is None else vector.ctypes.data


def squares_and_max(values: Vector, chunk: int) -> tuple[npt.NDArray[np.float64], Vector]:
    """Measure every `chunk` numbers: sum of the squares in numpy's order of addition, largest absolute value or NaN."""
    count = -(-len(values) // chunk)
    squares, largest = np.zeros(count), np.zeros(count, values.dtype)
    if (call := function_for("norm", values)) is not None:
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


def difference(start: Vector | None, values: Vector, out: Vector, chunk: int) -> tuple[npt.NDArray[np.float64], Vector]:
    """`squares_and_max` of out = start − values, in the same pass; `out` may be `values`.

    start: None: of out = values, of which each is read once, so that what is measured is what `out` has, also where
        another process writes to `values` meanwhile.
    """
    count = -(-len(out) // chunk)
    squares, largest = np.zeros(count), np.zeros(count, out.dtype)
    call = function_for("norm_difference", out)
    given = [values] if start is None else [start, values]
    if call is not None and all(each.dtype == out.dtype and is_readable(each) for each in given):
        if {len(each) for each in given} != {len(out)}:
            raise ValueError(f"vectors of {[*map(len, given), len(out)]} numbers; expected equal lengths")
        streams = out.nbytes > STREAM_BYTES and _start(out) != _start(values)  # in place its lines are fetched anyway
        ends = squares.ctypes.data, largest.ctypes.data
        call(_start(start), values.ctypes.data, out.ctypes.data, streams, len(out), chunk, *ends)
        return squares, largest
    for place in range(count):
        part = slice(place * chunk, (place + 1) * chunk)
        if start is None:
            np.copyto(out[part], values[part], casting="no")
        else:
            np.subtract(start[part], values[part], out=out[part])
        squares[place : place + 1], largest[place : place + 1] = squares_and_max(out[part], chunk)
    return squares, largest


def copy(values: Vector, out: Vector) -> None:
    """out = values, of one dtype; a long vector past the caches."""
    lib = library()
    is_plain = values.dtype == out.dtype and values.shape == out.shape and is_readable(values) and is_readable(out)
    if lib is not None and is_plain and out.nbytes > STREAM_BYTES and out.flags.writeable:
        lib.fedtorch_copy(out.ctypes.data, values.ctypes.data, out.nbytes)
    else:
        np.copyto(out, values, casting="no")


_TAGGED = 1 << 12  # so many products are added without a remainder in between


def tag_sums(numbers: npt.NDArray[np.int64], words: npt.NDArray[np.uint64], chunk: int = _TAGGED) -> Words:
    """Σ numbers · (the last 61 bits of words) modulo 2^61 − 1, of every `chunk` of them, uint64.

    numbers: each below 2^53 in magnitude. chunk: at most 4096.
    """
    if len(numbers) != len(words) or chunk > _TAGGED:
        sizes = f"{len(numbers)} numbers and {len(words)} words by {chunk}"
        raise ValueError(f"{sizes} have no tags; expected as many of both, by at most {_TAGGED}")
    found = np.zeros(-(-len(numbers) // chunk), np.uint64)
    if (lib := library()) is not None and is_readable(numbers) and is_readable(words):
        lib.fedtorch_tags(_start(numbers), _start(words), len(numbers), chunk, _start(found))
        return found
    for place in range(len(found)):
        part = slice(place * chunk, (place + 1) * chunk)
        found[place] = _tag_sum_in_numpy(numbers[part], words[part])
    return found


def _tag_sum_in_numpy(numbers: npt.NDArray[np.int64], words: npt.NDArray[np.uint64]) -> int:
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    size, kept = np.abs(numbers).view(np.uint64), words & np.uint64(P)
    halves = ((size & low, size >> half), (kept & low, kept >> half))  # 32 and 21 bits; 32 and 29
    total = 0
    for sign, side in ((1, numbers >= 0), (-1, numbers < 0)):
        for place, first in enumerate(halves[0]):
            for other, second in enumerate(halves[1]):
                products = first[side] * second[side]  # below 2^64
                added = (int((products >> half).sum()) << 32) + int((products & low).sum())
                total += sign * (added << 32 * (place + other))
    return total % P


def function_for(name: str, values: Vector, *wide: Vector) -> Any:
    """The loop in C for vectors of this dtype beside others of float64; None if there is none for them."""
    lib, suffix = library(), _SUFFIXES.get(values.dtype)
    if lib is None or suffix is None or not fits(*wide) or not is_readable(values):
        return None
    if any(len(other) != len(values) for other in wide):
        return None  # numpy says what is wrong
    return getattr(lib, f"fedtorch_{name}_{suffix}")


def fits(*vectors: Vector) -> bool:
    """Are they plain float64 vectors of one length?"""
    plain = all(vector.dtype == np.float64 and is_readable(vector) for vector in vectors)
    return plain and len({len(vector) for vector in vectors}) <= 1


def is_readable(vector: Vector) -> bool:
    """Can a loop in C read it?"""
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
        source = Path(__file__).with_name("_kernels.c")
        if source.exists() and zlib.crc32(source.read_bytes()) != lib.fedtorch_source():
            return None, f"{source} is not what {spec.origin} was built from; install fedtorch again"
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
        function.argtypes, function.restype = arguments, None if name.startswith(_NOTHING) else _DOUBLE
    return lib


def _adds_as_numpy(lib: ctypes.CDLL) -> bool:
    """Is numpy's order of addition, which its documentation leaves open, that of the loop in C?"""
    values = np.sin(np.arange(5003, dtype=np.float64))
    found, top = np.zeros(1), np.zeros(1)
    lib.fedtorch_norm_f64(values.ctypes.data, len(values), len(values), found.ctypes.data, top.ctypes.data)
    return bool(found[0] == np.add.reduce(values * values))
