"""Memory for a rank's updates and its part of their sum, which the other ranks of its machine read where it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from fedtorch.comm.transport.segment import Segment, path_of
from fedtorch.core.kept_vectors import lent

log = logging.getLogger(__name__)

LEAST_BYTES = 1 << 20
"""Of a vector: shorter ones are sent, which takes no longer than saying where they are."""
_ALIGNED = 1 << 12

Place = Sequence[int]
"""Of a vector: process, file and bytes of the memory that it is in, and the byte at which it begins; all 0: it is
nowhere that others could reach it."""
NOWHERE: Place = (0, 0, 0, 0)


class UpdateMemory:
    """Lends vectors of one length, and finds those of other ranks.

    The memory has no name, so nothing is left of it however the rank ends, and pages that nobody has touched take
    nothing, so there is room for as many vectors as are ever needed from the start.
    """

    is_open: bool
    """False after a rank could not reach another's."""

    def __init__(self, may_share: Callable[[], bool]) -> None:
        """may_share: may other ranks of this machine reach what is lent?"""
        self._may_share, self.is_open = may_share, True
        self._segment: Segment | None = None
        self._bytes, self._each, self._used = 0, 0, 0
        self._back: list[int] = []
        self._others: dict[tuple[int, int, int], Segment] = {}
        self._generation = 0

    def lend(self, size: int, dtype: torch.dtype, most: int) -> Tensor | None:
        """A vector of shape (size,), which holds what was left in it; None: there is none of this length to be shared.

        It comes back by itself when the last tensor or array that shares its memory is gone.
        most: how many there are at a time, as the first call says.
        """
        num_bytes = size * dtype.itemsize
        if self._segment is None and num_bytes >= LEAST_BYTES and self._may_share():
            self._each = -(-num_bytes // _ALIGNED) * _ALIGNED
            with suppress(OSError):
                self._segment = Segment(self._each * most)
                self._bytes = self._each * most
        if self._segment is None or not self._each - _ALIGNED < num_bytes <= self._each:
            return None
        if not self._back and self._used == self._bytes:
            return None
        start = self._back.pop() if self._back else self._used
        self._used = max(self._used, start + self._each)
        memory = self._segment.whole(torch.uint8)[start : start + num_bytes].view(dtype)
        return lent(memory, partial(self._back.append, start))

    def place(self, vector: Tensor) -> Place:
        """Where it is."""
        if self._segment is None or (start := self._segment.start(vector)) is None:
            return NOWHERE
        return os.getpid(), self._segment.file, self._bytes, start

    def begin(self, generation: int) -> None:
        """An exchange of this generation of the group begins: of another one's ranks nothing is kept.

        Memory that a rank has mapped stays for as long, also when the rank that made it is lost.
        """
        if generation != self._generation:
            self._generation = generation
            self._others.clear()

    def find(self, place: Place, size: int, dtype: torch.dtype) -> Tensor | None:
        """Another rank's vector, shape (size,), to be read; None: out of reach, or what the rank says cannot be."""
        process, file, num_bytes, start = place
        if process <= 0 or not 0 <= start <= num_bytes - size * dtype.itemsize or start % dtype.itemsize:
            return None
        key = process, file, num_bytes
        try:
            if key not in self._others:
                segment = self._others[key] = Segment(num_bytes, path_of(process, file))
                segment.close_file()
        except OSError as error:
            log.info("updates are sent, for another rank's cannot be read where they are: %s", error.strerror or error)
            return None
        return self._others[key].whole(torch.uint8)[start : start + size * dtype.itemsize].view(dtype)
