"""Columns of a row that are texts, alone or filled into a template."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any


def check_strings(values: Mapping[str, Any]) -> None:
    """Raises ValueError for a column that holds something else; values: role -> what the column holds."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise ValueError(f"`{name}` is a {type(value).__name__}, expected a string")


def template_columns(template: str | None) -> list[str]:
    """Names in braces, each once, in the order of the template; those of none where there is no template.

    Raises:
        ValueError: it is no template.
    """
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template or "") if name is not None))


def filled(template: str | None, values: Mapping[str, Any], role: str) -> str:
    """The template with the columns in place of each `{ROLE}`; without a template the column `role` as it is."""
    text: str = values[role] if template is None else template.format(**values)
    return text
