"""The moment between two steps of a client's training: what a rank needs to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

SHARED, PRIVATE = "shared", "private"
BUFFER, OPTIMIZER, SCALE, HELD = "buffer/", "optimizer/", "scale/", "held/"
GENERATOR, DEVICE_GENERATOR = "own/generator", "own/device_generator"
LOSSES, PENALTIES = "losses", "penalties"
NOISED = "noised"
"""Where an attempt at noised steps is, as bytes."""
OWN = "own/"
"""Entries with this prefix are a rank's alone, also where all ranks of a worker hold the same of everything else."""


@dataclass
class Moment:
    """Tensors and numbers by name; those of an engine, and those that a training adds."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Flat weights, buffers, the optimiser's state, states of generators, losses; on the CPU."""
    numbers: dict[str, int | float] = field(default_factory=dict)
    """The optimiser's counts, the loss scale, the step."""
    step: int = 0
    """Steps taken."""


class SavedTraining(Protocol):
    """One training of a client in a round, as who saves it sees it."""

    def take(self) -> Moment | None:
        """Where an earlier process was when it saved this training; None: it begins. Given away once."""
        ...

    def is_due(self, step: int, planned: int) -> bool:
        """Is it to be saved after so many of the planned steps? Asked after every step, on all ranks of a worker."""
        ...

    def stops(self, error: Exception) -> bool:
        """Does this error end the process in good order, so that there is time to save?"""
        ...

    def save(self, moment: Moment) -> None:
        """Write it; a disk that refuses is a warning."""
        ...


class Saves(Protocol):
    """Saves the trainings of one client in one round."""

    counted: Mapping[str, float]
    """Counts of the task up to the last save, which it holds no more."""

    def training(self, facts: Sequence[bytes | memoryview], fault: Callable[[Moment], str]) -> SavedTraining:
        """The client's next training.

        facts: all that it begins with; a save of others is not its own. fault: what is wrong with a moment that was
        read, as a clause; empty: nothing.
        """
        ...
