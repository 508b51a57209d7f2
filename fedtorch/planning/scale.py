"""Predicts a round of a built run on many nodes: the run's numbers for `planning.cost_model`, and its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedtorch.algorithms.message import MessageAlgorithm, message_bytes
from fedtorch.algorithms.packing import Packing
from fedtorch.core.errors import ConfigError
from fedtorch.planning.bench import default_path, read, step_key
from fedtorch.planning.cost_model import ModelSize, Site, memory, seconds
from fedtorch.planning.round_work import RoundWork, Way
from fedtorch.planning.step_time import Training, largest_client
from fedtorch.rounds.placement import costs
from fedtorch.setup.build import BuiltRun
from fedtorch.train.memory import optimizer_numbers
from fedtorch.train.settings import ClientConfig

_SERVER_STATE = {"none": 0, "sgd": 1, "adagrad": 2, "adam": 2, "yogi": 2, "adamw": 2}


@dataclass(frozen=True)
class Cluster:
    """Options `--nodes` and those beside it."""

    nodes: int
    """Machines."""
    ranks_per_node: int
    """Alike on all; the server is one of them."""
    gbit: float = math.inf
    """Of a node's wire, in each direction."""
    cores: int | None = None
    """Of a node; None: as many as the measured machine has."""
    constants: Path | None = None
    """The file of constants; None: this machine's own."""

    def __post_init__(self) -> None:
        """Raises ConfigError: a number is not positive."""
        named = {"--nodes": self.nodes, "--ranks-per-node": self.ranks_per_node, "--cores": self.cores or 1}
        for name, value in {**named, "--bandwidth": self.gbit}.items():
            if not value > 0:
                raise ConfigError(f"{name} is {value}; give a number above 0")

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node


def round_work(built: BuiltRun, num_ranks: int, training: Training) -> RoundWork:
    """The first round of a run that was built for so many ranks. training: as measured with the usual settings."""
    drawn = [client for client, _ in built.first_cohort]
    placed = built.topology.assign(costs(built.config, built.training, drawn), None)
    usual = built.training.cost(largest_client(built).name)  # whose step was measured
    hosted, busy = [0] * num_ranks, [0.0] * num_ranks
    for client in drawn:
        ranks = built.topology.workers[placed[client.name]]
        hosted[ranks[0]] += 1
        steps = steps_of(built.config.client_for(client.name), client.sizes["train"])
        taken = training.start_s + steps * training.step_s * built.training.cost(client.name) / usual
        for rank in ranks:
            busy[rank] += taken
    algorithm, layout = built.algorithm, built.algorithm.travels.laid_out(built.engine.shared)
    work = RoundWork(
        numbers=layout.size * len(algorithm.travels.vectors),
        hosted=tuple(hosted),
        train_s=tuple(busy),
        exchange=built.config.system.exchange,
        item_bytes=layout.dtype.itemsize,
    )
    if isinstance(algorithm, MessageAlgorithm) and (num_bytes := message_bytes(algorithm, layout)):
        way: Way = "allreduce" if algorithm.combines_in_slices else "star"
        way = "replicated" if algorithm.combines_everywhere else way
        work = replace(work, message=way, message_bytes=num_bytes)
    if (packing := Packing.of(built.config.exchange, layout)) is not None:
        work = replace(work, message="star", message_bytes=packing.message_bytes, sends_weights=True)
    return work


def steps_of(hp: ClientConfig, examples: int) -> int:
    """Optimiser steps of a client's round."""
    if hp.steps is not None:
        return hp.steps
    return (hp.epochs or 1) * math.ceil(math.ceil(examples / hp.batch_size) / hp.accumulation)


def model_size(built: BuiltRun) -> ModelSize:
    """Sizes of the run's model that ranks keep."""
    config, engine = built.config, built.engine
    return ModelSize(
        shared=engine.shared.size,
        private=engine.private.size,
        item_bytes=engine.shared.dtype.itemsize,
        state=max(optimizer_numbers(hp) for hp in {config.client, *built.settings}) + config.exchange.error_feedback,
        server_state=_SERVER_STATE.get(config.server.optimizer, 2),
        update_bytes=config.system.update_memory_mb << 20,
        keeps_initial=built.algorithm.limits.reads_initial
        or not built.algorithm.travels.vectors
        or bool(built.task.refers_to),
    )


def describe_scale(built: BuiltRun, cluster: Cluster) -> str:
    """Bytes, seconds and memory of a round on the cluster, as text.

    Raises:
        ConfigError: no constants, or none of a step of this model.
    """
    path = cluster.constants or default_path()
    measured, key = read(path), step_key(built)
    if key not in measured.steps:
        raise ConfigError(
            f"{path} has no training step of this model with these settings; run `fedtorch bench` with the same "
            "--config and --set" + (f" and --out {path}" if cluster.constants else "")
        )
    constants = measured.constants
    work = round_work(built, cluster.ranks, measured.steps[key])
    site = Site(cluster.ranks, cluster.ranks_per_node, cluster.gbit * 1e9 / 8, cluster.cores or constants.cores)
    system = built.config.system
    if min(cluster.nodes, cluster.ranks_per_node) > 1 and system.shared_memory == "auto":
        work = replace(work, machines=tuple(site.node(rank) for rank in range(site.ranks)))
    threads = max(1, built.config.system.threads)
    work = replace(work, train_s=tuple(s * threads for s in work.train_s)) if threads > 1 else work
    return "\n".join(_lines(built, cluster, work, site, {"constants": constants, "path": path}))


def _lines(built: BuiltRun, cluster: Cluster, work: RoundWork, site: Site, measured: Mapping[str, object]) -> list[str]:
    constants = measured["constants"]
    spent = seconds(work, site, constants)  # type: ignore[arg-type]
    size = model_size(built)
    worker = max(range(work.ranks), key=lambda rank: (work.hosted[rank], rank > 0, -rank))
    rows = [
        f"scale: {cluster.nodes} nodes of {cluster.ranks_per_node} ranks and {site.cores} cores, "
        f"{cluster.gbit:g} Gbit/s each; constants of {measured['path']}",
        f"  updates travel by `{work.way}`; {work.clients} clients on {sum(map(bool, work.hosted))} of "
        f"{work.ranks} ranks; {work.headers} operations, {work.meetings} meetings of all ranks",
    ]
    for name, rank in (("server", 0), ("busiest worker", worker)):
        counted, held = work.counted(rank), memory(work, size, constants, rank)  # type: ignore[arg-type]
        rows.append(
            f"  {name:15}{counted.down / 2**20:>12,.1f} MiB down {counted.up / 2**20:>12,.1f} MiB up "
            f"{held / 2**20:>9,.0f} MiB of memory, without activations"
        )
    parts = (
        ("broadcast", spent.down),
        ("local training", spent.train),
        ("sum", spent.up),
        ("server's step", spent.step),
        ("meetings", spent.meetings),
        ("headers", spent.headers),
        ("whatever is sent", spent.fixed),
    )
    rows.append(f"  {spent.total:.3g} s a round: " + ", ".join(f"{name} {value:.3g} s" for name, value in parts))
    ways = [("busiest wire", work)]
    if work.machines is not None:
        ways = [("busiest wire, one rank of a node talks", work), ("if every rank did", replace(work, machines=None))]
    for name, way in ways:
        down, up = site.carried(way.down) / 2**20, site.carried(way.up) / 2**20
        rows.append(f"  {name}: {down:,.1f} MiB in the broadcast, {up:,.1f} MiB in the sum")
    return rows
