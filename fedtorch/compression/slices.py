"""A vector dealt out to several owners, and the largest of its numbers found among all of them together.

An owner has every P-th block of the vector (P owners), not one stretch of it: large gradients lie close together (the
rows of frequent words in an embedding), and in blocks every owner gets nearly the same share of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.compression.payload import Sparse

BLOCK = 16  # numbers: a cache line of fp32
_DIGIT = 4  # bits of a number looked at together: 16 counts per part and pass cross between the owners
_INDEX_BITS = 32

Counts = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slices:
    """Which numbers of a vector belong to which owner; within a slice they keep their order."""

    size: int
    """Length of the vector."""
    count: int
    """Owners."""

    def before(self, owner: int, index: int) -> int:
        """How many numbers in front of `index` are the owner's."""
        cycles, rest = divmod(index, BLOCK * self.count)
        return cycles * BLOCK + min(max(rest - owner * BLOCK, 0), BLOCK)

    def length(self, owner: int) -> int:
        """Numbers in the owner's slice."""
        return self.before(owner, self.size)

    @property
    def starts(self) -> list[int]:
        """Where each slice begins when all of them are laid end to end."""
        return [0, *np.cumsum([self.length(owner) for owner in range(self.count)])][: self.count]

    def split(self, sparse: Sparse) -> list[Sparse]:
        """Each owner's part of a vector, with the indices that its numbers have in the slice."""
        blocks, within = np.divmod(sparse.indices.numpy(), BLOCK)
        cycles, owners = np.divmod(blocks, self.count)
        order = np.argsort(owners.astype(np.uint16), kind="stable")  # of 16 bits it is a radix sort
        borders = [0, *np.cumsum(np.bincount(owners, minlength=self.count))]
        local = torch.from_numpy((cycles * BLOCK + within)[order])
        values = sparse.values[torch.from_numpy(order)]
        return [
            Sparse(self.length(owner), local[start:stop], values[start:stop])
            for owner, (start, stop) in enumerate(zip(borders, borders[1:], strict=False))
        ]

    def whole(self, owner: int | Indices, indices: npt.NDArray[Any]) -> Indices:
        """The places in the vector of these places in the owner's slice, or in that of an owner each."""
        cycles, within = np.divmod(indices.astype(np.int64), BLOCK)
        return np.asarray((cycles * self.count + owner) * BLOCK + within, np.int64)

    def unlaid(self, places: npt.NDArray[Any]) -> Indices:
        """The places in the vector of these places where all slices are laid end to end."""
        starts = np.array(self.starts)
        owners = np.searchsorted(starts, places, side="right") - 1  # slices without numbers are the last ones
        return self.whole(owners, places - starts[owners])


@dataclass(frozen=True)
class Selection:
    """How many numbers of which part of a vector are kept."""

    starts: tuple[int, ...]
    """Where each part begins; it ends where the next one does."""
    counts: tuple[int, ...]
    """Numbers that are kept of each part: those of largest magnitude, the lowest index first at a tie."""
    values: torch.dtype
    """What they are rounded to."""


def nonzero(vector: Tensor) -> Sparse:
    """All numbers of a dense vector that are not zero."""
    indices = torch.from_numpy(np.flatnonzero(vector.numpy()).astype(np.int32))
    return Sparse(vector.numel(), indices, vector[indices.long()])


def largest_of_all(
    own: Tensor, slices: Slices, owner: int, selection: Selection, add: Callable[[Counts], Counts]
) -> Sparse:
    """This owner's part of the numbers that `compressors.TopK` would keep of the whole vector; all owners call it.

    Zeros are never kept, so there may be fewer. `own`: the owner's slice. `add`: sums over all owners.

    The numbers are sorted by digits, the highest first, of their magnitude's bits, which are in the order of the
    magnitudes, and at a tie of their index: the owners add up how many numbers have which digit, and all see alike
    within which digit the border lies. In mostly 8 passes, of 128 bytes per part, it is found exactly.

    Raises:
        ValueError: on all owners, if the vector has NaN.
    """
    entries = own.numpy()
    if add(np.array([np.isnan(entries).any()], np.int64))[0]:
        raise ValueError("a vector with NaN has no largest entries")
    stops = [*selection.starts[1:], slices.size]
    ranges = [
        (slices.before(owner, start), slices.before(owner, stop))
        for start, stop in zip(selection.starts, stops, strict=True)
    ]
    parts = [
        _Part(np.flatnonzero(entries[start:stop]) + start, left)
        for (start, stop), left in zip(ranges, selection.counts, strict=True)
    ]
    unsigned = np.uint64 if entries.dtype == np.float64 else np.uint32

    def magnitudes(indices: Indices) -> npt.NDArray[Any]:
        return np.abs(entries[indices]).view(unsigned)

    def nearness(indices: Indices) -> npt.NDArray[Any]:
        return ((1 << _INDEX_BITS) - 1 - slices.whole(owner, indices)).astype(np.uint64)

    for keys_of, bits in ((magnitudes, 8 * entries.dtype.itemsize), (nearness, _INDEX_BITS)):
        for part in parts:
            part.keys = keys_of(part.open)
        for shift in range(bits - _DIGIT, -1, -_DIGIT):
            still_open = [part for part in parts if not part.is_done]
            if not still_open:
                break
            found = add(np.stack([part.count(shift) for part in still_open]))
            for part, counts in zip(still_open, found, strict=True):
                part.narrow(counts, shift)
    chosen = np.concatenate([np.zeros(0, np.int64), *(np.sort(np.concatenate(part.taken)) for part in parts)])
    return Sparse(len(entries), torch.from_numpy(chosen.astype(np.int32)), own[torch.from_numpy(chosen)])


class _Part:
    """One owner's numbers of a part: those taken, and those of which it is not known yet."""

    def __init__(self, indices: Indices, left: int) -> None:
        self.open, self.left = indices, left
        """left: how many of all owners' open numbers are to be taken; equal at all owners"""
        self.keys: npt.NDArray[Any] = np.zeros(0, np.uint64)
        """of the open ones; larger goes first"""
        self.taken: list[Indices] = [indices[:0]]
        self.is_done = False

    def count(self, shift: int) -> Counts:
        """How many open numbers have which digit."""
        return np.bincount(self._digits(shift), minlength=1 << _DIGIT)

    def narrow(self, counts: Counts, shift: int) -> None:
        """Take what is above the border, drop what is below. counts: of all owners."""
        digits, reached = self._digits(shift), np.cumsum(counts[::-1])[::-1]  # at or above each digit
        if reached[0] <= self.left:
            self._close(digits >= 0)
            return
        border = int(np.flatnonzero(reached >= self.left)[-1])
        above = int(reached[border] - counts[border])
        if counts[border] == self.left - above:
            self._close(digits >= border)
            return
        self.left -= above
        self.taken.append(self.open[digits > border])
        self.open, self.keys = self.open[digits == border], self.keys[digits == border]

    def _close(self, mask: npt.NDArray[np.bool_]) -> None:
        self.taken.append(self.open[mask])
        self.open, self.keys, self.is_done = self.open[:0], self.keys[:0], True

    def _digits(self, shift: int) -> Counts:
        return ((self.keys >> self.keys.dtype.type(shift)) & self.keys.dtype.type((1 << _DIGIT) - 1)).astype(np.int64)


def cut(total: int, count: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of `count` equal stretches of `total` things; the last ones may be shorter."""
    width = -(-total // count)
    for place in range(count):
        yield min(place * width, total), min((place + 1) * width, total)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Common part of two stretches; empty ones begin where they end."""
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return start, max(start, stop)


def received_to_balance(counts: Sequence[int]) -> int:
    """The most that an owner receives when what owners have (`counts`) is divided anew into equal stretches."""
    ends = np.cumsum(counts).tolist()
    held = [(end - count, end) for end, count in zip(ends, counts, strict=True)]
    wanted = list(cut(ends[-1], len(counts)))
    return max(
        (stop - start) - (overlap(have, (start, stop))[1] - overlap(have, (start, stop))[0])
        for have, (start, stop) in zip(held, wanted, strict=True)
    )
