"""Where each client lives: one computation for the run, for `--dry-run` and for the checks at start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fedtorch.comm.topology import Topology
from fedtorch.config.schema import ClientConfig, Config
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError
from fedtorch.tasks.base import Task


@dataclass(frozen=True)
class Placement:
    """Which worker has which client; by place among the workers."""

    homes: dict[str, int]
    """training client -> worker that keeps its state"""
    evaluators: dict[str, int]
    """evaluated client -> worker that evaluates it: its home; where clients are merged or have no training data, they
    are balanced by size"""


def place(config: Config, task: Task, training: Task, clients: Sequence[Client], topology: Topology) -> Placement:
    """A pure function of its arguments, so every rank computes the same."""
    allowed = workers_with_data(config, topology)
    homes = topology.homes(costs(config, training, clients), allowed)
    manifest = task.manifest()
    sizes = {name: float(sum(splits.values())) for name, splits in manifest.items() if name not in homes}
    homeless = topology.homes(sizes, allowed)
    return Placement(homes, {name: homes[name] if name in homes else homeless[name] for name in manifest})


def make_topology(config: Config, num_ranks: int) -> Topology:
    """The workers of a job of so many ranks; one process is a worker by itself.

    Raises:
        ConfigError: the ranks that train are not what `system.ranks_per_worker` needs.
    """
    server_works = config.system.server_works
    if server_works == "auto":
        server_works = num_ranks == 1 or server_would_idle(config, num_ranks)
    width = 1 if num_ranks == 1 else config.system.ranks_per_worker
    try:
        return Topology(num_ranks, server_works, width)
    except ValueError as error:
        shown = list(width) if isinstance(width, tuple) else width
        raise ConfigError(f"system.ranks_per_worker is {shown} but {error}") from error


def server_would_idle(config: Config, num_ranks: int) -> bool:
    """Would a server that only serves leave the core of its rank idle, which could train clients?

    So it is where all ranks are on one machine without GPUs that has no more cores than ranks. Not where the server
    has other work (the noise of private rounds), must not be a party of a secure sum, has no client's files, or where
    several ranks train a client together.
    """
    system, privacy = config.system, config.privacy
    if config.engine.kind == "deepspeed" or system.ranks_per_worker != 1 or system.placement == "pinned":
        return False
    if privacy.kind != "none" or privacy.secure_sum:
        return False
    if system.device == "cuda" or system.device == "auto" and torch.cuda.is_available():
        return False
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 0))  # from the launcher, as for every rank
    return here == num_ranks >= (os.cpu_count() or 1)


def workers_with_data(config: Config, topology: Topology) -> dict[str, list[int]] | None:
    """Client -> the workers that can read its files; None where all can, as in a job of one context.

    Raises:
        ConfigError: a client is pinned to a rank or node that does not train, or is not there.
    """
    if config.system.placement != "pinned" or topology.num_ranks == 1:
        return None
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", topology.num_ranks))
    width = 1 if config.system.pinned_to == "rank" else per_node
    what = config.system.pinned_to
    places: dict[int, list[int]] = {}
    for worker, ranks in enumerate(topology.workers):
        places.setdefault(ranks[0] // width, []).append(worker)
    for name, place in config.system.pinned.items():
        if place not in places:
            there = place < -(-topology.num_ranks // width)
            why = "only serves (see system.server_works)" if there else f"is not there: {topology.num_ranks} ranks run"
            raise ConfigError(
                f"system.pinned.{name} is {place} but {what} {place} {why}; {what}s that train: "
                + ", ".join(map(str, places))
            )
    return {name: places[place] for name, place in config.system.pinned.items()}


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
