"""The parts that a run is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedtorch.algorithms.base import Algorithm
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.worker import WorkerGroup
from fedtorch.config.schema import Config
from fedtorch.core.clients import Clients
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.sampling import Sampler
from fedtorch.rounds.placement import Placement
from fedtorch.rounds.topology import Topology
from fedtorch.tasks.base import Task
from fedtorch.tracking.tracker import Tracker
from fedtorch.train.engine import Engine


@dataclass(frozen=True)
class RunComponents:
    """The parts that `setup.build` makes and a runner works with, the same on every rank but for `tracker`."""

    config: Config
    """the whole one"""
    task: Task
    """evaluation data and model"""
    training: Task
    """what clients train on: `task`, or one client with the data of all"""
    algorithm: Algorithm
    """what clients compute and how the server combines it"""
    clients: Clients
    """those with training examples, in the manifest's order"""
    sampler: Sampler
    """draws the clients of a round"""
    engine: Engine
    """the model, into which any client's weights are loaded"""
    comm: Communicator
    """moves weights, updates and numbers between ranks"""
    topology: Topology
    """which ranks make up which worker"""
    placement: Placement
    """which worker trains and evaluates which client"""
    checkpoints: Checkpoints
    """of this run"""
    config_record: Mapping[str, object]
    """the config as checkpoints keep it, without secrets"""
    facts: Mapping[str, str]
    """what a checkpoint must agree with, beside the config"""
    stop: Callable[[], bool]
    """was this rank asked to stop?"""
    mechanism: Mechanism = field(default_factory=Mechanism)
    """what is done to updates and numbers before anybody else sees them"""
    tracker: Tracker | None = None
    """writes the records; on the server only"""
    worker: WorkerGroup | None = None
    """the ranks that train this rank's clients together with it; None: it is alone"""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """clients that take no part any more -> the first round that is drawn without them (`clients.on_repeated_loss`)"""
    is_engine_shared: bool = False
    """does a later run of this process begin with the initial weights of the same engine?"""
    clock: Callable[[], float] = time.monotonic
    """seconds that never go back, by which the server decides when a checkpoint is due"""
