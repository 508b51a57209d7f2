"""What the round loop, evaluation and saving share on one rank: the parts of the run and its state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.checkpoint import Checkpoints
from fedtorch.client import Client, ClientState, ClientStore
from fedtorch.comm.base import Communicator
from fedtorch.comm.topology import Topology
from fedtorch.comm.wire import NO_CLIENT, Message
from fedtorch.comm.worker import WorkerGroup
from fedtorch.config import Config, ServerConfig
from fedtorch.placement import cost, place
from fedtorch.seeds import seed_for
from fedtorch.server import ServerOptimizer, ServerState
from fedtorch.tasks.base import SERVER, Task
from fedtorch.track import Tracker
from fedtorch.train.engine import Engine
from fedtorch.update import UpdateBuffer


@dataclass(frozen=True)
class Setting:
    """What a run is made of, the same on every rank but for `tracker`; see `build`.

    task: evaluation data and model. training: what clients train on (`task`, or one merged client).
    worker: the ranks that train this rank's clients together with it; None: it is alone.
    clients: the training clients. config_record, facts: kept in checkpoints. stop: was the run asked to stop?
    tracker: on the server only.
    """

    config: Config
    task: Task
    training: Task
    algorithm: Algorithm
    clients: Sequence[Client]
    engine: Engine
    comm: Communicator
    topology: Topology
    checkpoints: Checkpoints
    config_record: Mapping[str, object]
    facts: Mapping[str, str]
    stop: Callable[[], bool]
    tracker: Tracker | None = None
    worker: WorkerGroup | None = None


class Stopped(Exception):
    """A signal asked to stop; the round under way is abandoned on all ranks."""


class Rank:
    """One rank's share of a run.

    received: the server's vectors, end to end in the order of `Algorithm.exchanged`; on the server `server.tensors`
    are views of it, so nothing is copied before a broadcast. is_fresh: do all ranks hold what the server has?
    has_messages: do clients send compressed messages, so that every rank keeps a replica of the server's state?
    homes: training client -> worker; judges: evaluated client -> worker. round: rounds done.
    """

    def __init__(self, setting: Setting) -> None:
        config, engine = setting.config, setting.engine
        self.setting, self.config, self.comm, self.algorithm = setting, config, setting.comm, setting.algorithm
        # an optimiser, a place in the data or a model that a client keeps is state, whatever the algorithm
        settings = {config.client, *(config.client_for(name) for name in config.per_client if name != SERVER)}
        keeps = any(
            hp.optimizer_state == "keep" or hp.steps is not None or hp.schedule_span == "run" for hp in settings
        )
        keeps |= config.eval.point == "trained" or config.eval.best == "per_client"
        self.is_stateful = keeps or setting.algorithm.stateful(engine.private)
        placement = place(config, setting.task, setting.training, setting.clients, setting.topology)
        self.homes, self.judges = placement.homes, placement.judges
        spill = config.folder / "spill" / f"rank{self.comm.rank}"
        self.store = ClientStore(spill / "states", config.system.state_memory_mb << 20)
        self.received = torch.zeros(engine.shared.size * len(self.algorithm.exchanged), dtype=engine.shared.dtype)
        message_bytes = self.algorithm.message_bytes(engine.shared)
        self.has_messages = message_bytes > 0
        length, dtype = (message_bytes, torch.uint8) if message_bytes else (len(self.received), engine.shared.dtype)
        self.updates = UpdateBuffer(length, dtype, spill / "updates", config.system.update_memory_mb << 20)
        rule = server_rule(config.server)
        self.server = ServerState(
            self.planes(self.received),
            num_clients=len(setting.clients),
            optimizer=rule,
            num_rounds=config.rounds,
            layout=engine.shared,
        )
        self.round = 0
        self.is_fresh = False
        self.seconds: dict[str, float] = {}
        self._indices = {name: index for index, name in enumerate(self.comm.names)}

    @property
    def shared(self) -> Tensor:
        """The shared weights this rank received last (on the server: the current ones), flat."""
        if not self.algorithm.exchanged:
            return self.setting.engine.initial_shared
        return self.received[: self.setting.engine.shared.size]

    def planes(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of `flat` by the names of `Algorithm.exchanged`."""
        names = self.algorithm.exchanged
        return dict(zip(names, flat.chunk(len(names)), strict=True)) if names else {}

    def known(self) -> dict[str, Tensor]:
        """The server's vectors as this rank has them; with replicas its further tensors too."""
        planes = self.planes(self.received)
        return {**self.server.tensors, **planes} if self.has_messages else planes

    def cost(self, client: Client) -> float:
        """Relative cost of this client's local training in a round."""
        return cost(self.config, self.setting.training, client)

    def private_of(self, client: str, state: ClientState) -> Tensor | None:
        """The client's private weights, flat; before its first round its own draw of them. None if there are none."""
        layout = self.setting.engine.private
        if not layout.size:
            return None
        if "private" in state.tensors:
            return state.tensors["private"]
        drawn = self.setting.task.draw_private(
            self.setting.engine.module, seed_for(self.config.run.seed, "private", client)
        )
        initial = self.setting.engine.initial_private.clone()
        for name, view in layout.view(initial).items():
            if name in drawn:
                view.copy_(drawn[name])
        return initial

    def hosts(self, worker: int) -> bool:
        """Does this rank belong to that worker?"""
        return self.comm.rank in self.setting.topology.workers[worker]

    @property
    def leads(self) -> bool:
        """Does this rank speak for its worker to the federation?"""
        return self.setting.worker is None or self.setting.worker.leads

    def is_stopped(self) -> bool:
        """Was any rank of this worker asked to stop? Called by all of them alike."""
        stop = self.setting.stop()
        return stop if self.setting.worker is None else self.setting.worker.any(stop)

    def message(
        self,
        kind: str,
        client: str | None = None,
        *,
        status: str = "ok",
        numbers: Mapping[str, int | float] | None = None,
        lists: Mapping[str, tuple[float, ...]] | None = None,
    ) -> Message:
        """A message about `client`, or about the run."""
        index = NO_CLIENT if client is None else self._indices[client]
        return Message(index, kind, status, dict(numbers or {}), dict(lists or {}))

    def name(self, message: Message) -> str:
        """The client a message is about."""
        return self.comm.names[message.client]

    def arrive(self, phase: str, *, may_stop: bool = True) -> None:
        """Wait for all ranks.

        Raises:
            Stopped: on all ranks, if any of them was asked to stop.
        """
        wants_stop = may_stop and self.setting.stop()
        if self.comm.arrive(phase, round=self.round, stop=wants_stop) and may_stop:
            raise Stopped

    def broadcast(self) -> None:
        """The server's vectors to all ranks, unless they have them already."""
        with self.timed("broadcast"):
            self.arrive("broadcast")
            if self.algorithm.exchanged and not self.is_fresh:
                self.comm.broadcast(self.received)
                self.is_fresh = True

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the block's seconds to `seconds[phase]`, and shows the phase in the heartbeat."""
        self.comm.heartbeat(phase=phase, round=self.round)
        started = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started

    def working(self, text: str) -> None:
        """Show what is being done, where there is someone to show it to."""
        if self.setting.tracker is not None:
            self.setting.tracker.working(text)


def server_rule(config: ServerConfig) -> ServerOptimizer:
    """The server's rule with every null replaced by the number it stands for."""
    resolved = config.resolved()
    return ServerOptimizer(
        optimizer=resolved.optimizer,
        lr=1.0 if resolved.lr is None else resolved.lr,
        momentum=resolved.momentum,
        beta1=0.9 if resolved.beta1 is None else resolved.beta1,
        beta2=resolved.beta2,
        tau=resolved.tau,
        bias_correction=resolved.bias_correction,
        eps=resolved.eps,
        weight_decay=resolved.weight_decay,
        no_decay=resolved.no_decay,
        schedule=resolved.schedule,
        warmup_ratio=resolved.warmup_ratio,
    )
