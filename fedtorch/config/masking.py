"""Hides values from files and logs that stand under keys called like a secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MASK = "<masked>"
_SECRET = ("token", "key", "secret", "password")
_PATH = ("trust", "key")  # names the file with a key
_ASSIGNED = re.compile(rf"(?<!{_PATH[0]}\.)({'|'.join(_SECRET)})=.*", re.IGNORECASE | re.DOTALL)


def mask_data(data: Any, key: str = "") -> Any:
    """Nested data with the strings masked whose key, or the last word of it after `_`, is that of a secret."""
    if isinstance(data, dict):
        return {name: value if (key, name) == _PATH else mask_data(value, name) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [mask_data(value, key) for value in data]
    return MASK if isinstance(data, str) and data and key.lower().split("_")[-1] in _SECRET else data


def set_options(assignments: Sequence[str]) -> list[str]:
    """`--set` with these overrides, masked, as words of a command; nothing where there are none."""
    return ["--set", *map(mask_assignment, assignments)] if assignments else []


def mask_assignment(text: str) -> str:
    """`key=value`, also in the midst of a shell's line, with what follows hidden where the key ends like a secret's."""
    return _ASSIGNED.sub(rf"\1={MASK}", text)
