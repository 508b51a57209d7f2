"""Which numbers of a flat vector travel, where not all of them do: by client, by round and by direction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from fedtorch.core.weights import Layout


class Places:
    """Indices into a flat vector, ascending, each once. Both ends compute them; only the numbers there travel."""

    def __init__(self, indices: Tensor, size: int) -> None:
        """indices: int64, shape (length,). size: of the whole vector.

        Raises:
            ValueError: they do not ascend, or lie outside the vector.
        """
        ascends = bool((indices.diff() > 0).all())
        if indices.numel() and not (ascends and 0 <= int(indices[0]) and int(indices[-1]) < size):
            raise ValueError(f"{indices.numel()} places in a vector of {size} numbers should ascend and lie in it")
        self.indices, self.size = indices, size

    @classmethod
    def of_names(cls, layout: Layout, names: Iterable[str], *, vectors: int = 1) -> Places:
        """All numbers of these tensors, in each of `vectors` vectors of the layout that lie end to end."""
        chosen = set(names)
        ranges = [
            torch.arange(start, start + size) + layout.size * number
            for number in range(vectors)
            for name, start, size in zip(layout.names, layout.offsets, layout.sizes, strict=True)
            if name in chosen
        ]
        whole = torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64)
        return cls(whole, layout.size * vectors)

    def __len__(self) -> int:
        return self.indices.numel()

    @cached_property
    def digest(self) -> str:
        """Equal exactly when the places are."""
        return hashlib.blake2b(self.indices.numpy().tobytes(), digest_size=16).hexdigest()

    def take(self, flat: Tensor) -> Tensor:
        """The numbers there, shape (length,), a copy."""
        return flat[self.indices]

    def put(self, numbers: Tensor, flat: Tensor) -> Tensor:
        """Write them into `flat`, which is returned."""
        flat[self.indices] = numbers
        return flat

    def spread(self, numbers: Tensor) -> Tensor:
        """A whole vector with them and 0 elsewhere."""
        return self.put(numbers, torch.zeros(self.size, dtype=numbers.dtype))

    def holds_all_of(self, flat: Tensor) -> bool:
        """Is the vector 0 wherever nothing travels?"""
        return int(torch.count_nonzero(flat)) == int(torch.count_nonzero(self.take(flat)))
