"""Columns of a row that are texts, alone or filled into a template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_strings(values: Mapping[str, Any]) -> None:
    """Raises ValueError for a column that holds something else; values: role -> what the column holds."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise ValueError(f"`{name}` is a {type(value).__name__}, expected a string")


def filled(template: str | None, values: Mapping[str, Any], role: str) -> str:
    """The template with the columns in place of each `{ROLE}`; without a template the column `role` as it is."""
    text: str = values[role] if template is None else template.format(**values)
    return text
