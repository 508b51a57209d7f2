"""A client's rows where every step of its training is noised, and what stands in their place for everybody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

from torch import Tensor

from fedtorch.core.errors import UpdateError

Numbers = Any
"""A float64 array of numpy, shape (trained numbers,)."""


class Steps(Protocol):
    """One attempt at a training, by the privacy mechanism."""

    def batch(self, units: int) -> list[int]:
        """Which of so many units are in the next step's batch; often none."""
        ...

    def coins(self) -> int:
        """A seed for all else that is drawn in the next step."""
        ...

    def rows(self, unit: int, rows: int, most: int) -> list[int]:
        """Which of a unit's rows count in the next step."""
        ...

    def add(self, total: Numbers, gradient: Tensor) -> None:
        """Add a unit's gradient, bounded, to the step's sum."""
        ...

    def release(self, total: Numbers) -> Numbers:
        """The noised gradient of a step, of its sum, in whose place it is written."""
        ...

    def written(self) -> bytes:
        """Where the attempt is between two steps, for a save of it; nothing of it tells of the rows."""
        ...

    def is_of(self, written: bytes) -> bool:
        """Is that of this attempt at this training?"""
        ...

    def go_on(self, written: bytes, step: int) -> None:
        """Be where it was when that was written, after so many steps."""
        ...

    def may_leave(self) -> bool:
        """The training is over; False: it is to be done again."""
        ...


@dataclass(frozen=True)
class SiloWork:
    """A client's rows and the promise about them, in one round."""

    examples: Sequence[Any]
    """its training rows, which nothing but single units' gradients may depend on"""
    units: Sequence[Sequence[int]]
    """of each unit its places in `examples`"""
    declared: int
    """how many units it is said to have"""
    max_rows: int
    """of a unit in a step"""
    per_unit: str
    """how gradients are taken, as `privacy.per_unit`"""
    physical: int
    """units in memory at once"""
    sends_sum: bool
    """does one sum of gradients leave, in place of what steps along them come to?"""
    begin: Callable[[str, Iterable[bytes | memoryview]], Steps]
    """begin(purpose, facts): the next attempt at a training that begins with these facts"""

    @property
    def hidden(self) -> Sequence[Any]:
        """In place of the rows, for algorithms: as many as are declared, of which none can be looked at."""
        return _Hidden(self.declared)


def by_person(persons: Sequence[str]) -> list[tuple[int, ...]]:
    """Places of each person's rows, persons in the order of their first rows."""
    found: dict[str, list[int]] = {}
    for place, person in enumerate(persons):
        found.setdefault(person, []).append(place)
    return [tuple(places) for places in found.values()]


class _Hidden(Sequence[Any]):
    def __init__(self, declared: int) -> None:
        self._declared = declared

    def __len__(self) -> int:
        return self._declared

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        raise UpdateError("with privacy.kind record an algorithm must not look at rows, but through `job.train`")
