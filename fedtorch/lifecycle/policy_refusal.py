"""A rank whose site refuses the run by its policy: it comes to tell the others so, and takes no part."""

from __future__ import annotations

import os

VARIABLE = "FEDTORCH_REFUSES"
"""Environment variable in which `fedtorch join` gives the words for the others; empty: this side takes part."""


def refusal() -> str:
    """Words that this rank has to tell the others; empty: it takes part."""
    return os.environ.get(VARIABLE, "")
