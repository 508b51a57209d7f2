"""The server's vectors where ranks of its machine read them as they are, through memory that they share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.segment import Segment
from fedtorch.comm.transport.server_vector import ServerVector
from fedtorch.comm.transport.shared import Shared


class MappedVector(ServerVector):
    """One that all ranks read where the server has it, if they are on its machine; else as in the base class."""

    def __init__(self, group: Callable[[], Group], may_share: Callable[[], bool]) -> None:
        """group: the present one. may_share: may others map what `make` gives?"""
        super().__init__()
        self._group, self._may_share = group, may_share
        self._segment: Segment | None = None

    @property
    def device(self) -> torch.device | None:
        """Device of payloads, once they have their way."""
        return self._group().device

    def another(self) -> MappedVector:
        """A further vector."""
        return MappedVector(self._group, self._may_share)

    def make(self, size: int, dtype: torch.dtype) -> Tensor:
        """Zeros in memory that other ranks of this machine can map, shape (size,)."""
        if self._may_share() and self._group().rank == 0 and size:
            with suppress(OSError):
                self._segment = Segment(size * dtype.itemsize)
                return self._segment.whole(dtype)
        return super().make(size, dtype)

    def share(self, vector: Tensor) -> Tensor:
        """Replace the vector by the server's where every rank can map that."""
        group = self._group()
        if group.size > 1 and len(vector):
            group.agree(Op.SHARE, round=0, length=len(vector), dtype=vector.dtype)
            mapping = _Mapping(vector, self._segment, group)
            group.wait(group.begin(mapping.begin))
            vector, self._shared = mapping.found, mapping.found if mapping.is_shared else None
        if self._segment is not None:
            self._segment.close_file()
            self._segment = None
        return vector


class _Mapping:
    """A vector that is being mapped."""

    def __init__(self, vector: Tensor, segment: Segment | None, group: Group) -> None:
        self.found, self.is_shared = vector, False
        self._segment, self._place, self._size = segment, group.members.index(group.rank), group.size
        self._payloads: Shared | None = None

    def begin(self, payloads: Any) -> _Mapping:
        self._payloads = payloads if isinstance(payloads, Shared) else None
        return self

    def wait(self) -> None:
        if self._payloads is not None:
            found = self._payloads.map(self.found, self._segment, self._place, self._size)
            if found is not None:
                self.found, self.is_shared = found, True
