"""The names of clients, of which there may be a million, in order and without a string for each."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload


class Names(Sequence[str]):
    """Distinct names in an order: `head` and a number of equally many digits each, made when asked for, then others.

    Memory: nothing for numbered names; for every other one what a tuple and a dictionary need. Equal to any sequence
    of the same strings.

    Raises:
        ValueError: a name is there twice.
    """

    def __init__(self, others: Iterable[str] = (), *, head: str = "", numbered: int = 0) -> None:
        self.head, self.numbered, self._others = head, numbered, tuple(others)
        self._width = len(str(numbered - 1))
        self._places = {name: place for place, name in enumerate(self._others, numbered)}
        distinct = len(self._places.keys()) - sum(self._number(name) is not None for name in self._places)
        if distinct != len(self._others):
            total = numbered + len(self._others)
            raise ValueError(f"{total} client names were given, {numbered + distinct} of them distinct")

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """`names` itself where it is one of these."""
        return names if isinstance(names, Names) else cls(names)

    def place(self, name: str) -> int:
        """Where a name stands, from 0.

        Raises:
            KeyError: nowhere.
        """
        number = self._number(name)
        return self._places[name] if number is None else number

    def _number(self, name: str) -> int | None:
        digits = name[len(self.head) :]
        if not self.numbered or len(digits) != self._width or not name.startswith(self.head):
            return None
        if not (digits.isascii() and digits.isdigit()):
            return None
        number = int(digits)
        return number if number < self.numbered else None

    def __len__(self) -> int:
        return self.numbered + len(self._others)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(len(self))[place])
        place = range(len(self))[place]  # an IndexError, and a place counted from the end
        if place < self.numbered:
            return f"{self.head}{place:0{self._width}}"
        return self._others[place - self.numbered]

    def __iter__(self) -> Iterator[str]:
        head, width = self.head, self._width
        for number in range(self.numbered):
            yield f"{head}{number:0{width}}"
        yield from self._others

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._places or self._number(name) is not None)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3])) + (", ..." if len(self) > 3 else "")
        return f"Names({shown}; {len(self)})"


def folded(name: str) -> str:
    """The name without what readers and some disks do not tell apart: case, width and forms of Unicode."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def look_alikes(names: Iterable[str], folder_of: Callable[[str], str]) -> tuple[str, str] | None:
    """The first two names that look alike, or whose files would lie in one folder; None if there are no such two."""
    seen: dict[str, str] = {}
    for name in names:
        for key in {folded(name), folded(folder_of(name))}:
            if key in seen:
                return seen[key], name
            seen[key] = name
    return None
