"""Settings of the section `track`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedtorch.core.ranges import Whole


@dataclass(frozen=True)
class TrackConfig:
    """`track`: what is shown and logged while the run goes on."""

    tensorboard: bool = True
    """Write event files, one folder per client; false: not even where `run.trackers` has tensorboard."""
    device_usage: bool = False
    """On GPUs: a client's record has the largest memory of its round, and how busy the GPU was. Memory tells how long a
    client's rows are, so it leaves only where it is asked for, and never with `privacy`."""
    step_curves: bool = True
    """Log every client's training loss over its steps."""
    progress: Literal["auto", "bar", "lines", "off"] = "auto"
    """On the terminal: a bar, one line per round, or nothing; auto: a bar on a terminal, else lines."""
    client_limit: Whole = 50
    """With more clients than this: quantiles and the worst ten in place of one curve per client."""
