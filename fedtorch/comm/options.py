"""How a rank of a job communicates, as `DistributedCommunicator.join` was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

import torch

from fedtorch.comm.backend import Choice
from fedtorch.comm.disconnect import DisconnectMonitor
from fedtorch.comm.server_updates import Exchange


@dataclass(frozen=True)
class Options:
    """The same on all ranks but for `stacks`, `disconnects` and `device`."""

    exchange: Exchange = "auto"
    """How weighted sums travel; the result is the same."""
    stacks: IO[str] | None = None
    """An open file for the stacks of this rank's threads, should it be silent or crash."""
    disconnects: DisconnectMonitor | None = None
    """Connections that tell of a lost rank, where the run can go on without it."""
    backend: Choice = "auto"
    """Of payloads."""
    device: torch.device = torch.device("cpu")
    """This rank's own."""
    grace_s: float = 3.0
    """After a failed collective: for those that are alive to say so, whose sockets close within 0.1 s."""
