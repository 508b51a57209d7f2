"""What an accountant has found is found once in a session of tests, in whatever process it was asked for first.

A distribution of privacy losses takes a second of processor time, and each rank of each test would make its own. So
whole answers are kept, under all that they depend on, and losses are told apart by ROUGH, from which an accountant
also never tells too little. Files of tests that know an ε from elsewhere use the fixture `exact_accounts`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from fedtorch.privacy import accounting
from fedtorch.privacy.record import terms

FOLDER = "FEDTORCH_TESTS_ACCOUNTS"
"""Variable with the folder of the answers; other processes of the session inherit it."""

EXACT, ROUGH = accounting.INTERVAL, 4e-3
"""Between values of the privacy loss: of the package, and of most tests."""
_make = accounting._one_release.__wrapped__


@lru_cache(maxsize=4)
def _one_release(z: float, rate: float, interval: float) -> Any:
    assert interval == accounting.INTERVAL
    return _make(z, rate)


@dataclass(frozen=True)
class Remembered:
    """Stands for a distribution until somebody asks for an ε that is not known yet."""

    parts: tuple[tuple[float, float, int], ...]
    """(z, q, how many), in the order in which they are composed."""

    def self_compose(self, count: int) -> Remembered:
        ((z, rate, one),) = self.parts
        return Remembered(((z, rate, one * count),))

    def compose(self, other: Remembered) -> Remembered:
        return Remembered(self.parts + other.parts)

    def get_epsilon_for_delta(self, delta: float) -> float:
        about = repr((self.parts, delta, accounting.INTERVAL))
        file = Path(os.environ[FOLDER]) / hashlib.sha256(about.encode()).hexdigest()
        if file.exists():
            return float.fromhex(file.read_text())
        whole = reduce(
            lambda one, other: one.compose(other),
            [_one_release(z, rate, accounting.INTERVAL).self_compose(count) for z, rate, count in self.parts],
        )
        epsilon = float(whole.get_epsilon_for_delta(delta))
        own = file.with_suffix(f".{os.getpid()}")
        own.write_text(epsilon.hex())
        own.replace(file)
        return epsilon


def remember() -> None:
    """Let this process, and those that it starts from a fork server, share what their accountants find."""
    accounting._one_release = lambda z, rate: Remembered(((z, rate, 1),))  # type: ignore[assignment]
    accounting.INTERVAL = ROUGH


@contextmanager
def exactly() -> Iterator[None]:
    """In this process accountants compute as the package does."""
    _set_interval(EXACT)
    yield
    _set_interval(ROUGH)


def _set_interval(interval: float) -> None:
    accounting.INTERVAL = interval
    accounting._epsilon.cache_clear()
    terms._epsilon.cache_clear()


def begin() -> bool:
    """Make the session's folder; False: this process is not the session's first."""
    if FOLDER in os.environ:
        return False
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="fedtorch-accounts-")
    return True


def end() -> None:
    shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)
