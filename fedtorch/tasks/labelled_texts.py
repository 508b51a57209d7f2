"""Form of a row that is classified: a text or two, and a label, several, or a number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedtorch.data.own.text_form import list_in_text, number_text

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
    decimal: str = "."
    """what stands before the decimals of a number that is a text"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """text, text_pair if there is one, and label: a string, a list of strings, or a number."""
        row: dict[str, Any] = {"text": _text(values["text"], "text")}
        if values.get("text_pair") is not None:
            row["text_pair"] = _text(values["text_pair"], "text_pair")
        label = list_in_text(values["label"]) if self.problem == "multi_label" else values["label"]
        if self.problem == "regression":
            row["label"] = self._number(label)
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
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # as tables have whole numbers in columns where some are missing
        if not isinstance(value, str | int):
            raise ValueError(f"the label is a {type(value).__name__}, expected a string or a whole number")
        label = str(value).lower() if isinstance(value, bool) else str(value)
        if self.known and label not in self.known:
            raise ValueError(f"the label {label[:40]!r} is none of task.data.labels: {', '.join(self.known)[:200]}")
        return label

    def _number(self, value: Any) -> float:
        advice = "expected a finite number, as for every regression"
        try:
            number = math.nan if isinstance(value, bool) else float(number_text(value, self.decimal))
        except (TypeError, ValueError, OverflowError):
            number = math.nan
            if isinstance(value, str) and self.decimal == "." and re.fullmatch(r"[+-]?\d+,\d+", value.strip()):
                advice = 'a number with a comma; set task.data.decimal to ",", or write a point'
            elif self.decimal == ",":
                advice += " with a comma before its decimals, as task.data.decimal says"
        if not math.isfinite(number):
            raise ValueError(f"the label is a {type(value).__name__}, {advice}")
        return number


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the {name} is a {type(value).__name__}, expected a string")
    return value
