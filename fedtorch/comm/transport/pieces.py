"""Payloads between hosts, in pieces: one that is under way for many minutes would look like a rank that hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat

from torch import Tensor

from fedtorch.comm.transport.process_group import Came, Direct, Transport, Work, ignored

PIECE_BYTES = 1 << 20  # a second on a wire of 10 Mbit/s; gloo gives every operation a time limit of its own


class InPieces(Transport):
    """A transport whose whole payloads are broadcast or all-gathered piece by piece; windows are small already."""

    def __init__(self, inner: Direct, beat: Callable[[], None]) -> None:
        """beat: called after every piece."""
        self._inner, self._beat = inner, beat

    def broadcast(self, tensor: Tensor, came: Came = ignored) -> Work:
        pieces = cut(tensor)
        return _Works(map(self._inner.broadcast, pieces), self._beat, came, accumulate(map(len, pieces)))

    def reduce(self, tensor: Tensor) -> Work:
        return self._inner.reduce(tensor)

    def send(self, tensor: Tensor, rank: int) -> Work:
        return self._inner.send(tensor, rank)

    def receive(self, tensor: Tensor, rank: int) -> Work:
        return self._inner.receive(tensor, rank)

    def all_gather(self, everyone: Sequence[Tensor], mine: Tensor) -> Work:
        pieces = zip(cut(mine), *map(cut, everyone), strict=True)
        return _Works([self._inner.all_gather(others, own) for own, *others in pieces], self._beat)

    def all_to_all(self, into: Tensor, came: Sequence[int], sent: Tensor, sizes: Sequence[int], longest: int) -> Work:
        return self._inner.all_to_all(into, came, sent, sizes, longest)

    def drop(self) -> None:
        self._inner.drop()


class _Works:
    """Operations under way; lets go of each that is done, and of all when one has failed."""

    def __init__(
        self, works: Iterable[Work], beat: Callable[[], None], came: Came = ignored, ends: Iterable[int] = repeat(0)
    ) -> None:
        """ends: numbers that are there after each; for `came`."""
        self._works, self._beat, self._came, self._ends = list(works), beat, came, iter(ends)

    def wait(self) -> None:
        try:
            while self._works:
                self._works.pop(0).wait()
                self._beat()
                self._came(next(self._ends))
        finally:
            self._works.clear()


def cut(tensor: Tensor) -> Sequence[Tensor]:
    """A payload in pieces."""
    return tensor.split(max(1, PIECE_BYTES // tensor.itemsize))
