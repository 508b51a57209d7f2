"""Where each client lives: one computation for the run, for `--dry-run` and for the checks at start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedtorch.client import Client
from fedtorch.comm.topology import Topology
from fedtorch.config import ClientConfig, Config
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
    homes = topology.homes(costs(config, training, clients))
    manifest = task.manifest()
    homeless = topology.homes({n: float(sum(sizes.values())) for n, sizes in manifest.items() if n not in homes})
    return Placement(homes, {name: homes[name] if name in homes else homeless[name] for name in manifest})


def costs(config: Config, training: Task, clients: Iterable[Client]) -> dict[str, float]:
    """Relative cost of each client's local training in one round."""
    usual, found = _per_round(config.client), {}
    for client in clients:
        special = client.name in config.per_client
        stepped, epochs = _per_round(config.client_for(client.name)) if special else usual
        found[client.name] = (stepped or client.sizes["train"] * epochs) * training.cost(client.name)
    return found


def _per_round(hp: ClientConfig) -> tuple[int, int]:
    """(examples of a round that is counted in steps, else 0; epochs)."""
    return (hp.steps * hp.batch_size * hp.accumulation if hp.steps is not None else 0), hp.epochs or 1
