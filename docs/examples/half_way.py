"""A user's algorithm that changes what clients send: half of the way that they went.

Named in YAML as `algorithm: {name: "half_way:HalfWay"}`, with this file's folder as the working directory or on
PYTHONPATH.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtorch import ClientJob, Report
from fedtorch.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class HalfWay(FedAvg):
    """Every client goes back half of the way that it went: FedAvg with a server that takes half a step."""

    def client_update(self, job: ClientJob) -> Report:
        """Train from the received weights and send half of the difference."""
        received = job.received["weights"]
        curve = job.train(received)
        job.send("weights", job.engine.difference(received) / 2)
        return self.report(job, curve)
