"""Facts of a run that an algorithm may need before the first round and that its own keys do not say."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from fedtorch.train.settings import ClientConfig

InRun = TypeVar("InRun")


@dataclass(frozen=True)
class RunFacts:
    """Facts that are the same on every rank."""

    run_seed: int
    """`run.seed`"""
    rounds: int
    """of the whole run"""
    client: ClientConfig
    """the section `client`, from which single clients may differ"""
    settings: Callable[[str], ClientConfig]
    """name of a client -> its settings"""
    same_places: bool = False
    """must the same numbers travel of every client's update, as with a sum that hides them?"""


def in_run(algorithm: InRun, facts: RunFacts) -> InRun:
    """Return the algorithm as a part of a run, whose facts are in `of_run`; they are not among its fields."""
    found = copy(algorithm)
    object.__setattr__(found, "of_run", facts)
    return found
