"""Choices within a mapping of a config: a later layer that chooses otherwise replaces what belonged to the former."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OneOf:
    """Keys of a mapping of which exactly one is given. A class has it as `one_of`, a field in its annotation."""

    keys: tuple[str, ...]
    """the alternatives"""
    kept: tuple[str, ...] = ()
    """keys that belong to none of them; all others belong to the alternative beside which they stand"""

    def mapping(self, value: Any) -> Any:
        """The value in the form in which layers are merged."""
        return value

    def replaced(self, lower: Mapping[str, Any], upper: Mapping[str, Any]) -> set[str]:
        """The keys of `lower` that go, because `upper` chooses another alternative."""
        chosen = {key for key in self.keys if upper.get(key) is not None}
        before = {key for key in self.keys if lower.get(key) is not None}
        return set(lower) - set(self.kept) if chosen and before - chosen else set()


@dataclass(frozen=True)
class Named:
    """A name, or a mapping of a `name` and the fields of what it stands for. A field has it in its annotation."""

    default: str | None = None
    """the name where none is given"""
    keys: tuple[str, ...] = ("name",)
    """what chooses: one key, which stands for the name"""

    def mapping(self, value: Any) -> Any:
        """The value in the form in which layers are merged: a name as a mapping."""
        (key,) = self.keys
        if isinstance(value, str):
            return {key: value}
        return {key: self.default, **value} if isinstance(value, Mapping) and self.default else value

    def replaced(self, lower: Mapping[str, Any], upper: Mapping[str, Any]) -> set[str]:
        """The keys of `lower` that go, because `upper` gives another name."""
        (key,) = self.keys
        return set(lower) if upper.get(key, lower.get(key)) != lower.get(key) else set()


Choice = OneOf | Named
