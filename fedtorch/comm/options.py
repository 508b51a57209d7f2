"""How a rank of a job communicates, as `DistributedCommunicator.join` was told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

import torch

from fedtorch.comm.job.links import Links
from fedtorch.comm.job.ports import Ports
from fedtorch.comm.sums.sum_ways import Exchange
from fedtorch.comm.transport.backend import Choice


@dataclass(frozen=True)
class Network:
    """Knowledge of a rank about the others and the way to them."""

    interface: str | None = None
    """On jobs of several hosts, its name or a network, see `comm.job.addresses`."""
    trusted: bool = False
    """May the ranks talk to each other over public addresses?"""
    start_s: float | None = None
    """How long ranks wait for each other at the start; None: as long as a rank may be silent, but 60 at least."""
    why_no_return: str = ""
    """Why a lost rank cannot come back into the job; empty: it can."""
    who: Mapping[int, str] = field(default_factory=dict)
    """Rank -> whose it is, for messages, where ranks belong to somebody."""
    shares_memory: bool = True
    """May payloads go through memory that all ranks share, where they are on one machine?"""

    ports: Ports | None = None
    """Of which each listener has one, beside the store's; None: any."""

    def labels(self, hosts: tuple[str, ...]) -> dict[int, str]:
        """Words that messages add to a rank's number. hosts: by rank, or none."""
        found = {}
        for rank in {*self.who, *range(len(hosts))}:
            host = f"host `{hosts[rank]}`" if rank < len(hosts) and hosts[rank] else ""
            words = ", ".join(filter(None, (self.who.get(rank, ""), host)))
            found[rank] = f" ({words})" if words else ""
        return found


@dataclass(frozen=True)
class CommOptions:
    """CommOptions of a communicator, alike on all ranks but for `links`, `stacks` and `device`."""

    links: Links
    """Connections between the server and the workers."""
    recovers: bool = False
    """Does the end of a connection tell of a lost rank, without which the run can go on?"""
    exchange: Exchange = "auto"
    """How weighted sums travel; the result is the same."""
    stacks: IO[str] | None = None
    """An open file for the stacks of this rank's threads, should it be silent or crash."""
    backend: Choice = "auto"
    """Of payloads."""
    device: torch.device = torch.device("cpu")
    """This rank's own."""
    grace_s: float = 3.0
    """After a failed collective: for those that are alive to say so, whose sockets close within 0.1 s."""
