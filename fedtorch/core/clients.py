"""All clients of a run, of which there may be a million: a `Client` is made when it is asked for."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.client import Client
from fedtorch.core.names import Names

Splits = Mapping[str, int]
"""split -> number of examples"""


class DealtSizes(Mapping[str, Splits]):
    """A manifest of clients that have a number of training examples and nothing else, then of some other entries.

    The numbered ones of `names` are the clients. train: their examples, shape (clients,), which is kept as it is.
    """

    def __init__(self, names: Names, train: NDArray[Any], others: Sequence[Splits]) -> None:
        if len(train) != names.numbered or len(train) + len(others) != len(names):
            raise ValueError(f"{len(names)} names need as many sizes, got {len(train)} and {len(others)}")
        self.names, self.train, self._others = names, train, others
        self._same: dict[int, dict[str, int]] = {}  # one object per size

    def has_training(self) -> NDArray[np.bool_]:
        """Whether each entry has training examples, in order."""
        return np.concatenate([self.train > 0, np.array([bool(e.get("train")) for e in self._others], dtype=bool)])

    def at(self, place: int) -> Splits:
        """Return the client that stands there."""
        if place >= len(self.train):
            return self._others[place - len(self.train)]
        size = int(self.train[place])
        return self._same.setdefault(size, {"train": size})

    def __getitem__(self, name: str) -> Splits:
        return self.at(self.names.place(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def items(self) -> ItemsView[str, Splits]:
        """By place, so that no name is looked up."""
        return _Items(self)


class _Items(ItemsView[str, Splits]):
    def __init__(self, sizes: DealtSizes) -> None:
        super().__init__(sizes)
        self._sizes = sizes

    def __iter__(self) -> Iterator[tuple[str, Splits]]:
        return ((name, self._sizes.at(place)) for place, name in enumerate(self._sizes.names))


def names_of(manifest: Mapping[str, Splits]) -> Names:
    """The names of a manifest in its order."""
    return manifest.names if isinstance(manifest, DealtSizes) else Names(manifest)


class Clients(Sequence[Client]):
    """The clients with training examples, in the manifest's order. Memory: 4 bytes each beside the manifest."""

    def __init__(
        self, manifest: Mapping[str, Splits], names: Names | None = None, places: NDArray[np.int32] | None = None
    ) -> None:
        """names: the manifest's. places: of those that count; None: of all with training examples."""
        self._manifest, self._names = manifest, names_of(manifest) if names is None else names
        if places is None:
            if isinstance(manifest, DealtSizes):
                has_some = manifest.has_training()
            else:
                has_some = np.array([bool(splits.get("train")) for splits in manifest.values()], dtype=bool)
            places = np.flatnonzero(has_some).astype(np.int32)
        self.places = places
        """where each stands in the manifest, ascending, shape (clients,)"""

    @cached_property
    def train_sizes(self) -> NDArray[np.int64]:
        """Training examples of each, shape (clients,)."""
        if isinstance(self._manifest, DealtSizes) and (not len(self) or self.places[-1] < len(self._manifest.train)):
            return self._manifest.train[self.places].astype(np.int64)
        return np.array([self._manifest[name]["train"] for name in self.names()], dtype=np.int64)

    def names(self) -> Iterator[str]:
        """One after the other, without making clients."""
        if len(self) and self.places[-1] == len(self) - 1:  # the first ones, so none is looked up
            return islice(self._names, len(self))
        return (self._names[place] for place in self.places.tolist())

    def named(self, name: str) -> Client | None:
        """The client of that name; None if there is none, or it has nothing to train on."""
        if name not in self._names:
            return None
        place = self.place_of(self._names.place(name))
        return None if place is None else self[place]

    def place_of(self, index: int) -> int | None:
        """Where the client of that `Client.index` stands among these; None: nowhere."""
        place = int(np.searchsorted(self.places, index))
        return place if place < len(self) and self.places[place] == index else None

    def without(self, gone: Collection[str]) -> Clients:
        """All but those of these names."""
        indices = [self._names.place(name) for name in gone if name in self._names]
        return Clients(self._manifest, self._names, self.places[~np.isin(self.places, indices)])

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, place: int) -> Client: ...
    @overload
    def __getitem__(self, place: slice) -> list[Client]: ...
    def __getitem__(self, place: int | slice) -> Client | list[Client]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        index = int(self.places[place])
        name = self._names[index]
        sizes = self._manifest[name]
        return Client(name, index, sizes if isinstance(sizes, dict) else dict(sizes))
