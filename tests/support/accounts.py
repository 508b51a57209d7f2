"""What an accountant has found is found once in a session of tests, in whatever process it was asked for first.

A distribution of privacy losses takes a second of processor time, and each rank of each test would make its own. What
comes out is exactly what the accountant computes: only whole answers are kept, under all that they depend on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from fedtorch.privacy import accounting

FOLDER = "FEDTORCH_TESTS_ACCOUNTS"
"""Variable with the folder of the answers; other processes of the session inherit it."""


@dataclass(frozen=True)
class Remembered:
    """Stands for a distribution until somebody asks for an ε that is not known yet."""

    make: Callable[[float, float], Any]
    """From z and q the distribution of one release."""
    parts: tuple[tuple[float, float, int], ...]
    """(z, q, how many), in the order in which they are composed."""

    def self_compose(self, count: int) -> Remembered:
        ((z, rate, one),) = self.parts
        return Remembered(self.make, ((z, rate, one * count),))

    def compose(self, other: Remembered) -> Remembered:
        return Remembered(self.make, self.parts + other.parts)

    def get_epsilon_for_delta(self, delta: float) -> float:
        about = repr((self.parts, delta, accounting.INTERVAL))
        file = Path(os.environ[FOLDER]) / hashlib.sha256(about.encode()).hexdigest()
        if file.exists():
            return float.fromhex(file.read_text())
        whole = reduce(
            lambda one, other: one.compose(other),
            [self.make(z, rate).self_compose(count) for z, rate, count in self.parts],
        )
        epsilon = float(whole.get_epsilon_for_delta(delta))
        own = file.with_suffix(f".{os.getpid()}")
        own.write_text(epsilon.hex())
        own.replace(file)
        return epsilon


def remember() -> None:
    """Let this process, and those that it starts from a fork server, share what their accountants find."""
    make = accounting._one_release
    accounting._one_release = lambda z, rate: Remembered(make, ((z, rate, 1),))  # type: ignore[assignment]


def begin() -> bool:
    """Make the session's folder; False: this process is not the session's first."""
    if FOLDER in os.environ:
        return False
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="fedtorch-accounts-")
    return True


def end() -> None:
    shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)
