"""Sparse and quantised vectors as one flat byte tensor: what travels, and what a decoder accepts.

A message is a uint8 tensor: 64 bytes of header (8 int64), then two parts, the one of larger items first so that each
is aligned. Values of 8 bits have a third one, the powers of two that they are multiples of (`eight_bits`). A message of
any other make is refused, so that a wrong or damaged one cannot change a model.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.compression import eight_bits
from fedtorch.compression.topk import MAX_SIZE
from fedtorch.core.sparse_kernels import places_of_bits

HEADER_BYTES = 64
Encoding = Literal["auto", "index32", "bitmap"]
Values = Literal["fp32", "fp16", "bf16", "int8"]

DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "int8": torch.int8,
}
_MAGIC = 0x6674_7370
_INDEX32, _BITMAP, QUANTISED = 0, 1, 2
_POWERS = 4  # added to the kind where powers follow
_CODES = list(DTYPES)


class PayloadError(ValueError):
    """A message is not what it should be; says which part, never a value of it."""


@dataclass(frozen=True)
class Sparse:
    """A vector that is zero but at a few places."""

    size: int
    """Its length."""
    indices: Tensor
    """Where it is not zero: int32, strictly ascending."""
    values: Tensor
    """What it is there."""
    powers: Tensor | None = None
    """If its values are 8-bit numbers times a power of two: the byte of each stretch, uint8 (`eight_bits`)."""

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The whole vector, shape (size,)."""
        out = torch.zeros(self.size, dtype=dtype or self.values.dtype, device=self.values.device)
        out[self.indices.long()] = self.values.to(out.dtype)
        return out


def num_bytes(size: int, k: int, encoding: Encoding, item_bytes: int = 4) -> int:
    """Bytes of a sparse message without its header: k values, and k int32 indices or one bit per number.

    item_bytes: of a value; with 1 there is a byte more per stretch.
    """
    index, bitmap = 4 * k, (size + 7) // 8
    powers = eight_bits.stretches(size) if item_bytes == 1 else 0
    return k * item_bytes + powers + {"index32": index, "bitmap": bitmap, "auto": min(index, bitmap)}[encoding]


def encode(sparse: Sparse, encoding: Encoding = "auto", values: Values | None = None, *, seed: int = 0) -> Tensor:
    """The message for `sparse`, with values rounded to `values` (None: as they are; int8: as `seed` decides).

    `auto` takes indices unless a bitmap is smaller, which it is above a ratio of 1/32.
    """
    if sparse.size > MAX_SIZE:
        raise ValueError(f"a vector of {sparse.size} numbers needs 64-bit indices; the limit is {MAX_SIZE}")
    if values == "int8":
        sparse = in_8_bits(sparse, seed)
    dtype = sparse.values.dtype if values is None else DTYPES[values]
    k = sparse.indices.numel()
    if encoding == "auto":
        encoding = "bitmap" if (sparse.size + 7) // 8 < 4 * k else "index32"
    parts = [sparse.values.to(dtype)]
    if encoding == "bitmap":
        parts.append(_to_bitmap(sparse.indices, sparse.size))
    else:
        parts.insert(0, sparse.indices)
    kind = _BITMAP if encoding == "bitmap" else _INDEX32
    if sparse.powers is not None:
        parts.append(sparse.powers)
        kind += _POWERS
    return assemble((kind, code_of(dtype), sparse.size, k), _by_alignment(parts))


def in_8_bits(sparse: Sparse, seed: int = 0) -> Sparse:
    """The vector with int8 values, and their powers; what has powers already (`decode`) is not rounded again."""
    places, values = sparse.indices.cpu().numpy(), sparse.values.cpu().numpy()
    if sparse.powers is None:
        powers = eight_bits.powers_of(places, values, sparse.size)
    else:
        powers = sparse.powers.numpy()
    codes = eight_bits.rounded(places, values, powers, seed)
    device = sparse.values.device
    return Sparse(sparse.size, sparse.indices, torch.from_numpy(codes).to(device), torch.from_numpy(powers).to(device))


def from_8_bits(sparse: Sparse, places: npt.NDArray[Any] | None = None, size: int | None = None) -> Sparse:
    """The vector that int8 values and their powers stand for, in fp32.

    places, size: where its numbers are in the vector that the powers are of, and its length; None: it is that vector.

    Raises:
        PayloadError: they stand for none.
    """
    codes, size = sparse.values.cpu().numpy(), sparse.size if size is None else size
    places = sparse.indices.cpu().numpy() if places is None else places
    if sparse.powers is None or sparse.powers.numel() != eight_bits.stretches(size):
        raise PayloadError("numbers of 8 bits without the powers of two that they are multiples of")
    powers = sparse.powers.cpu().numpy()
    try:
        values = torch.from_numpy(eight_bits.widened(places, codes, powers))
    except ValueError as error:
        raise PayloadError(str(error)) from None
    return Sparse(sparse.size, sparse.indices, values.to(sparse.values.device), sparse.powers)


def decode(message: Tensor, size: int) -> Sparse:
    """The sparse vector of a message that must be about `size` numbers.

    Raises:
        PayloadError: not a message, of another size or kind, cut off, or with indices that are not ascending.
    """
    found = decode_as_sent(message, size)
    return from_8_bits(found) if found.values.dtype == torch.int8 else found


def decode_as_sent(message: Tensor, size: int) -> Sparse:
    """Decode with values as they travel: int8 are not widened, and may lack their powers."""
    kind, code, found, k = read_header(message)
    dtype = DTYPES[_CODES[code]]
    kinds = (_INDEX32, _BITMAP, *((_INDEX32 + _POWERS, _BITMAP + _POWERS) if dtype == torch.int8 else ()))
    if kind not in kinds or found != size or not 0 <= k <= size:
        raise PayloadError(f"a message of kind {kind} with {k} of {found} numbers; expected a sparse one of {size}")
    kind, is_scaled = kind % _POWERS, kind >= _POWERS
    power_bytes = eight_bits.stretches(size) if is_scaled else 0
    index_bytes = 4 * k if kind == _INDEX32 else (size + 7) // 8
    body = body_of(message, index_bytes + k * dtype.itemsize + power_bytes)
    body, powers = body[: len(body) - power_bytes], body[len(body) - power_bytes :]
    if kind == _BITMAP:
        values, index_part = body[: k * dtype.itemsize], body[k * dtype.itemsize :]
        bitmap = index_part.cpu().numpy()
        if (places := places_of_bits(bitmap, k)) is None:
            raise PayloadError(f"a bitmap with {np.unpackbits(bitmap).sum()} bits set; its header says {k}")
        indices = torch.from_numpy(places).to(index_part.device)
    elif dtype.itemsize > 4:
        values, index_part = body[: k * dtype.itemsize], body[k * dtype.itemsize :]
        indices = index_part.view(torch.int32)
    else:
        index_part, values = body[:index_bytes], body[index_bytes:]
        indices = index_part.view(torch.int32)
    own = indices.cpu().numpy()
    if k and (own[0] < 0 or own[-1] >= size or (kind == _INDEX32 and (own[1:] <= own[:-1]).any())):
        raise PayloadError(f"indices of a sparse message are not strictly ascending from 0 to {size - 1}")
    return Sparse(size, indices, values.view(dtype), powers if is_scaled else None)


def assemble(numbers: tuple[int, int, int, int], parts: list[Tensor]) -> Tensor:
    """Header and parts as one uint8 tensor. numbers: kind, code of the value dtype, size, count."""
    body = [part.contiguous().view(torch.uint8) for part in parts if part.numel()]
    length = sum(part.numel() for part in body)
    fields = [_MAGIC, *numbers, length, 0]
    header = torch.tensor([*fields, _check(fields)], dtype=torch.int64).view(torch.uint8)
    device = body[0].device if body else header.device
    return torch.cat([header.to(device), *body])


def read_header(message: Tensor) -> tuple[int, int, int, int]:
    """kind, dtype code, size and count of a message.

    Raises:
        PayloadError: it does not begin with an intact header.
    """
    fields = _fields(message)
    if fields[5] != message.numel() - HEADER_BYTES:
        raise PayloadError(f"a message of {message.numel() - HEADER_BYTES} bytes whose header says {fields[5]}")
    kind, code, size, count = fields[1:5]
    return kind, code, size, count


def length_of(header: Tensor) -> int:
    """Bytes that follow the first HEADER_BYTES of a message, for a reader that has no more of it yet.

    Raises:
        PayloadError: that is no intact header.
    """
    return _fields(header)[5]


def body_of(message: Tensor, expected: int) -> Tensor:
    """Return the bytes after the header, which must be `expected` many."""
    body = message[HEADER_BYTES:]
    if body.numel() != expected:
        raise PayloadError(f"a message of {body.numel()} bytes; expected {expected}")
    return body.clone() if body.storage_offset() % 8 else body


def code_of(dtype: torch.dtype) -> int:
    """The number of a value dtype in a header."""
    return next(place for place, known in enumerate(DTYPES.values()) if known == dtype)


def dtype_of(code: int) -> torch.dtype:
    """The value dtype of a number in a header."""
    return DTYPES[_CODES[code]]


def _by_alignment(parts: list[Tensor]) -> list[Tensor]:
    return sorted(parts, key=lambda part: -part.element_size())  # stable: indices stay before fp32 values


def _fields(message: Tensor) -> list[int]:
    if message.dtype != torch.uint8 or message.dim() != 1 or message.numel() < HEADER_BYTES:
        raise PayloadError(f"{message.numel()} {message.dtype} are no message; expected at least {HEADER_BYTES} bytes")
    # cloned: a slice of a larger buffer may lie at an odd address, which view() refuses
    *fields, check = message[:HEADER_BYTES].clone().view(torch.int64).tolist()
    if fields[0] != _MAGIC or check != _check(fields) or not 0 <= fields[2] < len(_CODES):
        raise PayloadError("a message whose header is damaged, or not one of ours")
    return [int(field) for field in fields]


def _check(fields: list[int]) -> int:
    return zlib.crc32(repr(fields).encode())


def _to_bitmap(indices: Tensor, size: int) -> Tensor:
    bits = torch.bitwise_left_shift(torch.ones_like(indices), indices & 7).to(torch.uint8)
    bitmap = torch.zeros((size + 7) // 8, dtype=torch.uint8, device=indices.device)
    return bitmap.scatter_add_(0, (indices >> 3).long(), bits)  # only the k bits are touched, not all n
