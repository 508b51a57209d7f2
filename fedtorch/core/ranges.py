"""Ranges of numbers in settings: the annotations that a config's values are checked against."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

LARGEST = 2**31 - 1
"""Of a count: more is a slip of the hand, and no tensor, step or batch can have it."""

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Layers = Annotated[int, Field(ge=1, le=1000)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
BelowHalf = Annotated[float, Field(ge=0, lt=0.5)]
Share = Annotated[float, Field(ge=0, le=1)]
