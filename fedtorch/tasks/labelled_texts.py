"""Form of a row that is classified: a text or two, and a label, several, or a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Problem = Literal["single_label", "multi_label", "regression"]


@dataclass(frozen=True)
class LabelledTexts:
    """Form of a row that is classified."""

    problem: Problem
    """what a label is; see `TextClassification.problem`"""
    known: tuple[str, ...]
    """labels that are declared; empty: any"""
    required: Sequence[str] = ("text", "label")
    """roles of the columns that a row has to have"""
    optional: Sequence[str] = ("text_pair",)
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """text, text_pair if there is one, and label: a string, a list of strings, or a number."""
        row: dict[str, Any] = {"text": _text(values["text"], "text")}
        if values.get("text_pair") is not None:
            row["text_pair"] = _text(values["text_pair"], "text_pair")
        label = values["label"]
        if self.problem == "regression":
            row["label"] = _number(label)
        elif self.problem == "multi_label":
            if not isinstance(label, list):
                raise ValueError(f"the label is a {type(label).__name__}, expected a list of labels")
            row["label"] = sorted({self._label(one) for one in label})
        else:
            if isinstance(label, list):
                raise ValueError("the label is a list; set task.problem to multi_label")
            row["label"] = self._label(label)
        return row

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """The text, and the second one."""
        return [row["text"], *([row["text_pair"]] if "text_pair" in row else [])]

    def _label(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"the label is a {type(value).__name__}, expected a string or a whole number")
        label = str(value)
        if self.known and label not in self.known:
            raise ValueError(f"the label {label[:40]!r} is none of task.data.labels: {', '.join(self.known)[:200]}")
        return label


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the {name} is a {type(value).__name__}, expected a string")
    return value


def _number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the label is a {type(value).__name__}, expected a finite number, as for every regression")
    return number
