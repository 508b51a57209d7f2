"""Where each client lives: one computation for the run, for `--dry-run` and for the checks at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtorch.client import Client
from fedtorch.comm.topology import Topology
from fedtorch.config import Config
from fedtorch.tasks.base import Task


@dataclass(frozen=True)
class Placement:
    """homes: training client -> worker that keeps its state. judges: evaluated client -> worker that judges it.

    A client is judged at its home; where clients are merged or have no training data, they are balanced by size.
    """

    homes: dict[str, int]
    judges: dict[str, int]


def place(config: Config, task: Task, training: Task, clients: Sequence[Client], topology: Topology) -> Placement:
    """A pure function of its arguments, so every rank computes the same."""
    homes = topology.homes({client.name: cost(config, training, client) for client in clients})
    manifest = task.manifest()
    homeless = topology.homes({n: float(sum(sizes.values())) for n, sizes in manifest.items() if n not in homes})
    return Placement(homes, {name: homes[name] if name in homes else homeless[name] for name in manifest})


def cost(config: Config, training: Task, client: Client) -> float:
    """Relative cost of a client's local training in one round."""
    hp = config.client_for(client.name)
    stepped = hp.steps * hp.batch_size * hp.accumulation if hp.steps is not None else 0
    return (stepped or client.sizes["train"] * (hp.epochs or 1)) * training.cost(client.name)
