"""FedAvg whose clients take a time of their own without the processor, as they would on a device of their own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.core.update import Report
from fedtorch.train.job import ClientJob


@dataclass(frozen=True)
class Sleepy(FedAvg):
    """FedAvg with pauses before a client trains, between which it shows that it is there."""

    pauses: tuple[tuple[str, int, float], ...] = ()
    """client, how many pauses, seconds of each"""

    def client_update(self, job: ClientJob) -> Report | Any:
        """Sleep, then train."""
        for name, count, seconds in self.pauses:
            for step in range(count if name == job.client.name else 0):
                time.sleep(seconds)
                job.on_step(step)
        return super().client_update(job)
