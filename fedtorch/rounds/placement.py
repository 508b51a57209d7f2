"""Where each client lives: one computation for the run, for `--dry-run` and for the checks at start."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedtorch.config.schema import ClientConfig, Config
from fedtorch.core import devices
from fedtorch.core.client import Client
from fedtorch.core.clients import Clients, DealtSizes
from fedtorch.core.errors import ConfigError
from fedtorch.core.names import Names
from fedtorch.rounds.topology import Topology
from fedtorch.tasks.base import Task


@dataclass(frozen=True)
class Placement:
    """Which worker has which client; by place among the workers."""

    homes: Mapping[str, int]
    """training client -> worker that keeps its state"""
    evaluators: Mapping[str, int]
    """evaluated client -> worker that evaluates it: its home; where clients are merged or have no training data, they
    are balanced by size"""


class Homes(Mapping[str, int]):
    """A worker for each of some names, in the order of all names. Memory: 4 bytes for each of all names.

    workers: by the place of a name, shape (names,), -1 where it has none.
    """

    def __init__(self, names: Names, workers: NDArray[np.int32]) -> None:
        self._names, self._workers = names, workers

    def __getitem__(self, name: str) -> int:
        worker = int(self._workers[self._names.place(name)])
        if worker < 0:
            raise KeyError(name)
        return worker

    def homeless(self) -> Iterator[str]:
        """The names without a worker."""
        return (self._names[place] for place in np.flatnonzero(self._workers < 0).tolist())

    def with_others(self, others: Mapping[str, int]) -> Homes:
        """Return these homes, and a worker for each of `others`."""
        workers = self._workers.copy()
        for name, worker in others.items():
            workers[self._names.place(name)] = worker
        return Homes(self._names, workers)

    def __iter__(self) -> Iterator[str]:
        return (self._names[place] for place in np.flatnonzero(self._workers >= 0).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._workers >= 0))


def place(config: Config, task: Task, training: Task, clients: Clients, topology: Topology) -> Placement:
    """A pure function of its arguments, so every rank computes the same."""
    allowed = workers_with_data(config, topology)
    manifest = task.manifest()
    if allowed is None and training is task and isinstance(manifest, DealtSizes):
        dealt = _dealt_homes(config, task, clients, manifest.names, topology)
        rest = {name: float(sum(manifest[name].values())) for name in dealt.homeless()}
        return Placement(dealt, dealt.with_others(topology.homes(rest)))
    homes = topology.homes(costs(config, training, clients), allowed)
    sizes = {name: float(sum(splits.values())) for name, splits in manifest.items() if name not in homes}
    homeless = topology.homes(sizes, allowed)
    return Placement(homes, {name: homes[name] if name in homes else homeless[name] for name in manifest})


def _dealt_homes(config: Config, task: Task, clients: Clients, names: Names, topology: Topology) -> Homes:
    """As `Topology.homes` of `costs`; numbered names are in the order of their places."""
    hp, special = config.client, {name: config.client_for(name) for name in config.per_client}
    found = (
        _cost(special.get(name, hp), examples, task.cost(name))
        for name, examples in zip(clients.names(), map(int, clients.train_sizes), strict=True)
    )
    each = np.fromiter(found, np.float64, len(clients))
    if not (np.isfinite(each) & (each >= 0)).all():
        topology.homes(costs(config, task, clients))  # says which
    order = np.argsort(-each, kind="stable")
    workers = np.full(len(names), -1, dtype=np.int32)
    workers[clients.places[order]] = np.fromiter(
        topology.spread(array("d", each[order].tobytes())), np.int32, len(order)
    )
    return Homes(names, workers)


def make_topology(config: Config, num_ranks: int) -> Topology:
    """The workers of a job of so many ranks; one process is a worker by itself.

    Raises:
        ConfigError: the ranks that train are not what `system.ranks_per_worker` needs.
    """
    server_works = server_trains(config, num_ranks)
    width = 1 if num_ranks == 1 else config.system.ranks_per_worker
    try:
        return Topology(num_ranks, server_works, width)
    except ValueError as error:
        shown = list(width) if isinstance(width, tuple) else width
        raise ConfigError(f"system.ranks_per_worker is {shown} but {error}") from error


def server_trains(config: Config, num_ranks: int) -> bool:
    """Does the server's rank train clients?"""
    if config.system.server_works == "auto":
        return num_ranks == 1 or server_would_idle(config, num_ranks)
    return bool(config.system.server_works)


def own_device(config: Config, num_ranks: int) -> torch.device:
    """This rank's device, see `devices.own`."""
    return devices.own(config.system.device, server_serves=server_serves(config, num_ranks))


def server_serves(config: Config, num_ranks: int) -> bool:
    """Does the server compute nothing on a device: no client is its own, and no data of the server's are trained on?"""
    own_data = config.algorithm is not None and config.algorithm.limits.trains_server
    return num_ranks > 1 and not own_data and not server_trains(config, num_ranks)


def server_would_idle(config: Config, num_ranks: int) -> bool:
    """Would a server that only serves leave the GPU, or the core, of its rank idle, which could train clients?

    So it is where all ranks are on one machine that has a GPU for each, or has none and as many cores as ranks. With
    more ranks the others use all cores, and one process more is in their way (*measured*: three ranks on two cores took
    2 to 8 % less time where the server only served, 13 % where there is hardly any training). Not where the server has
    other work (the noise of private rounds), must not be a party of a secure sum, has no client's files, or where
    several ranks train a client together.
    """
    system, privacy = config.system, config.privacy
    if config.engine.kind != "torch" or system.ranks_per_worker != 1 or system.placement == "pinned":
        return False
    if privacy.kind != "none" or privacy.secure_sum or config.counts_privately:
        return False
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 0))  # from the launcher, as for every rank
    if system.device != "cpu" and (gpus := devices.count()):
        return here == num_ranks <= gpus
    return here == num_ranks == (os.cpu_count() or 1)


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
    return {
        client.name: _cost(config.client_for(client.name), client.sizes["train"], training.cost(client.name))
        for client in clients
    }


def _cost(hp: ClientConfig, examples: int, cost: float) -> float:
    """Cost of a round in which a client with so many examples of this cost takes steps or epochs."""
    stepped = hp.steps * hp.batch_size * hp.accumulation if hp.steps is not None else 0
    return (stepped or examples * (hp.epochs or 1)) * cost
