"""Numbers of 4 bits, two in a byte: whole multiples of a power of two that all numbers of a stretch have in common.

A stretch is 4,096 numbers of the vector, and its power travels as one byte (`eight_bits`, which does the same with 8).
A number's code is one of -7..7 and travels as code + 8. What a code c stands for:

    chance    c · 2^e    e is the smallest that reaches the largest number; rounded by chance, so the mean is the number
    nearest   c · 2^e    the same, rounded to the nearest; a tie goes to the even one
    e3m0      0, or 2^(e - 7 + |c|) with the sign of c: the nearest of these, at a tie the larger; 2^e is the least
              power of two that reaches the largest number

All of these are exact in fp32, and so in the whole numbers of the sum (`comm.sums.reproducible`). The chance is a
function of a seed and of the place in the vector alone, so whoever rounds gets the same codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.compression import eight_bits
from fedtorch.compression.eight_bits import NOT_FINITE, Bytes, Codes, Floats
from fedtorch.compression.payload import PayloadError, assemble, body_of, code_of, read_header
from fedtorch.compression.settings import Rounding
from fedtorch.core.weights import Layout

MOST = 7
PACKED = 8
"""Kind of such a message; those of `payload` are below."""
_LEAST = -128  # the power of byte 1; that of byte 254 is 125: 7 · 2^125 is within fp32, 7 · 2^126 is not
_ZERO = 8  # as code 0 travels
_BATCH = 1 << 4  # stretches rounded together, so that scratch stays in the cache
_ROUNDINGS: tuple[Rounding, ...] = ("chance", "nearest", "e3m0")


@dataclass(frozen=True)
class FourBits:
    """Vectors to messages of 4 bits a number and back: a `Compressor`, for fp32 vectors on the CPU."""

    rounding: Rounding = "chance"
    """as `exchange.rounding`"""

    def compress(self, flat: Tensor, layout: Layout, *, seed: int = 0) -> Tensor:
        """The message (uint8) for `flat`, fp32, shape (layout.size,); `seed` decides what is rounded by chance.

        Of a stretch with a number that is not finite, or too large for a power, no number is finite when it is read.
        """
        values, size = flat.numpy(), layout.size
        powers = self._powers(values)
        packed = np.empty(-(-size // 2), np.uint8)
        for start, stop in _batches(size):
            codes = self._codes(values[start:stop], powers, start, seed)
            packed[start // 2 : -(-stop // 2)] = _paired(codes)
        numbers = (PACKED, code_of(torch.float32), size, _ROUNDINGS.index(self.rounding))
        return assemble(numbers, [torch.from_numpy(packed), torch.from_numpy(powers)])

    def decompress(self, message: Tensor, layout: Layout) -> Tensor:
        """The vector that a message stands for, fp32, shape (layout.size,).

        Raises:
            PayloadError: it is of another kind, size or rounding, or has codes that cannot be.
        """
        size, rounding = layout.size, _ROUNDINGS.index(self.rounding)
        if read_header(message) != (PACKED, code_of(torch.float32), size, rounding):
            raise PayloadError(f"a message that is not one of {size} numbers of 4 bits, rounded by {self.rounding}")
        body = body_of(message, self.message_bytes(layout)).numpy()
        packed, powers = body[: -(-size // 2)], body[-(-size // 2) :]
        scales = np.ldexp(np.float32(1), eight_bits.power_of(np.arange(256), _LEAST))
        scales[NOT_FINITE] = np.inf
        levels, out, wrong = self._levels(), np.empty(size, np.float32), 0
        for start, stop in _batches(size):
            codes = _unpaired(packed[start // 2 : -(-stop // 2)])
            own, rest = _of_each(powers, start, stop), codes[stop - start :]
            codes = codes[: stop - start]
            wrong += int(((codes == 0) | ((own == 0) & (codes != _ZERO))).sum() + (rest != _ZERO).sum())
            with np.errstate(invalid="ignore"):
                np.multiply(scales[own], levels[codes], out=out[start:stop])
        if wrong:
            raise PayloadError(f"{wrong} codes of 4 bits that cannot be")
        return torch.from_numpy(out)

    def message_bytes(self, layout: Layout) -> int:
        """Half a byte for each number, and one for each stretch."""
        return -(-layout.size // 2) + eight_bits.stretches(layout.size)

    def _powers(self, values: Floats) -> Bytes:
        """The byte of every stretch."""
        stretch, largest = eight_bits.STRETCH, np.zeros(eight_bits.stretches(len(values)))
        for start, stop in _batches(len(values)):
            magnitudes, first = np.abs(values[start:stop]), start // stretch
            found = np.maximum.reduceat(magnitudes, np.arange(0, stop - start, stretch))
            largest[first : first + len(found)] = found
        return eight_bits.bytes_of(largest, 1 if self.rounding == "e3m0" else MOST, _LEAST)

    def _codes(self, values: Floats, powers: Bytes, start: int, seed: int) -> Codes:
        """The code of each number from place `start` of the vector on."""
        stop = start + len(values)
        if self.rounding == "chance":
            places: eight_bits.Places = np.arange(start, stop, dtype=np.int64)
            if stop <= np.iinfo(np.int32).max:  # those that the loops in C take
                places = places.astype(np.int32)
            return eight_bits.rounded(places, values, powers, seed, least=_LEAST)
        own = _of_each(powers, start, stop)
        table = np.ldexp(1.0, -eight_bits.power_of(np.arange(256), _LEAST))
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.multiply(values, table[own], dtype=np.float64)
        steps[own == NOT_FINITE] = 1
        return np.rint(steps).astype(np.int8) if self.rounding == "nearest" else _nearest_powers(steps)

    def _levels(self) -> npt.NDArray[np.float32]:
        """The number that each code, as it travels, stands for in units of 2^e."""
        codes = np.arange(16) - _ZERO
        if self.rounding != "e3m0":
            return codes.astype(np.float32)
        return (np.sign(codes) * np.ldexp(1.0, np.abs(codes) - MOST)).astype(np.float32)


def _nearest_powers(steps: npt.NDArray[np.float64]) -> Codes:
    """The codes of the nearest of 0 and ±2^(c - 7), c in 1..7; at a tie of the larger one."""
    shares, powers = np.frexp(np.abs(steps))  # share · 2^power, share in [0.5, 1)
    codes = np.maximum(powers - 1 + (shares >= 0.75) + MOST, 1)
    codes[powers < 1 - MOST] = 0  # below 2^-7, the middle between 0 and the least power
    return (np.sign(steps) * codes).astype(np.int8)


def _batches(size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of a few whole stretches at a time."""
    step = _BATCH * eight_bits.STRETCH
    for start in range(0, size, step):
        yield start, min(start + step, size)


def _of_each(powers: Bytes, start: int, stop: int) -> Bytes:
    """The byte of each number between two places; start: of a stretch."""
    stretch = eight_bits.STRETCH
    return np.repeat(powers[start // stretch : -(-stop // stretch)], stretch)[: stop - start]


def _paired(codes: Codes) -> Bytes:
    """Two codes in a byte, the first in its lower half; the last half byte may be a 0."""
    found = (codes + _ZERO).astype(np.uint8)
    if len(found) % 2:
        found = np.append(found, np.uint8(_ZERO))
    return np.asarray(found[0::2] | found[1::2] << 4, np.uint8)


def _unpaired(packed: Bytes) -> Bytes:
    """Codes as they travel, two of each byte."""
    found = np.empty((len(packed), 2), np.uint8)
    np.bitwise_and(packed, 15, out=found[:, 0])
    np.right_shift(packed, 4, out=found[:, 1])
    return found.reshape(-1)
