"""Rows that say whose they are: a person, whose rows count together where the privacy of persons is promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtorch.data.own.rows import PERSON, Form


@dataclass(frozen=True)
class OfPersons:
    """Another form's row, with the person that it is of."""

    form: Form
    """of the row"""

    @property
    def required(self) -> Sequence[str]:
        """Also the person: a row of nobody could not be counted."""
        return [PERSON, *self.form.required]

    @property
    def optional(self) -> Sequence[str]:
        """As the other form has it."""
        return self.form.optional

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The other form's row, and the person as a text.

        Raises:
            ValueError: what names the person is neither a text nor a number; or what the other form refuses.
        """
        person = values[PERSON]
        if isinstance(person, bool) or not isinstance(person, str | int | float) or person != person:
            raise ValueError(f"what names a person is a {type(person).__name__}; expected a text or a number")
        if not (name := str(person).strip()):
            raise ValueError("the column that names a person is blank")
        return {**self.form.convert({key: value for key, value in values.items() if key != PERSON}), PERSON: name}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """Those of the other form: a name is none."""
        return self.form.texts(row)
