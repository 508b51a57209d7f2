"""Settings of the section `checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fedtorch.core.ranges import Count, NotNegative, Positive, Whole


@dataclass(frozen=True)
class CheckpointConfig:
    """`checkpoint`: how often the state is saved for a resume."""

    every: Literal["auto"] | Count = "auto"
    """Rounds between checkpoints; one is also written at the end and on a signal. auto: the server decides by its
    clock, see `cost` and `lose`; after every round where that is needed for more than a resume (docs/reliability.md).
    """
    cost: Annotated[float, Field(gt=0, le=1)] = 0.02
    """With `every: auto`: the largest share of the run's time for checkpoints, but for the first and the last one."""
    lose: NotNegative = 60.0
    """With `every: auto`: a crash is to cost at most so many seconds of work, or a round; where `cost` allows it."""
    every_steps: Count | None = None
    """Within a round too: a worker saves the training of a client that is under way after so many steps, and at its
    end. A run that is killed repeats at most so many steps of each worker. null: rounds are repeated whole"""
    every_seconds: Positive | None = None
    """Seconds after which a worker does so by its own clock, at the next step's end; null: only `every_steps` counts"""
    overlap: bool = False
    """Let the server write its part while the clients of the next round train, so that they need not wait; a run that
    is killed meanwhile goes on from the checkpoint before. Same files. The last checkpoint is waited for."""
    keep: Count = 2
    """Checkpoints kept, the newest ones; the best model is kept apart."""
    save_retries: Whole = 3
    """Rounds in a row in which saving may fail (disk full) before the run ends."""
    missing_clients: Literal["refuse", "restart"] = "refuse"
    """At a resume, where hosts have disks of their own: a client's state that is not on the disk where the client
    lives (the disk was lost, the client has moved) is an error, or the client starts anew."""

    @property
    def saves_steps(self) -> bool:
        """Are trainings saved while they are under way?"""
        return self.every_steps is not None or self.every_seconds is not None
