"""What the round loop, evaluation and saving share on one rank: the parts of the run and its state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.topology import Topology
from fedtorch.comm.wire import NO_CLIENT, Message
from fedtorch.comm.worker import WorkerGroup
from fedtorch.config.schema import Config
from fedtorch.core.client import Client, ClientState, ClientStore
from fedtorch.core.errors import CollectiveFailed, DeadlineError, QuorumError
from fedtorch.core.seeds import seed_for
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.core.update import UpdateBuffer
from fedtorch.rounds.placement import Placement
from fedtorch.tasks.base import SERVER, Task
from fedtorch.tracking.tracker import Tracker
from fedtorch.train.engine import Engine

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RunComponents:
    """What a run is made of, the same on every rank but for `tracker`; see `build`.

    task: evaluation data and model. training: what clients train on (`task`, or one merged client).
    clients: the training clients. placement: where they live. config_record, facts: kept in checkpoints.
    worker: the ranks that train this rank's clients together with it; None: it is alone. stop: was the run asked to
    stop? tracker: on the server only.
    """

    config: Config
    task: Task
    training: Task
    algorithm: Algorithm
    clients: Sequence[Client]
    engine: Engine
    comm: Communicator
    topology: Topology
    placement: Placement
    checkpoints: Checkpoints
    config_record: Mapping[str, object]
    facts: Mapping[str, str]
    stop: Callable[[], bool]
    tracker: Tracker | None = None
    worker: WorkerGroup | None = None


class Stopped(Exception):
    """A signal asked to stop; the round under way is abandoned on all ranks."""


class RoundContext:
    """One rank's share of a run.

    received: the server's vectors, end to end in the order of `Algorithm.exchanged_vectors`; on the server
    `server.tensors` are views of it, so nothing is copied before a broadcast.
    is_fresh: do all ranks hold what the server has?
    has_messages: do clients send compressed messages, so that every rank keeps a replica of the server's state?
    homes: training client -> worker; judges: evaluated client -> worker. round: rounds done.
    has_homes: does a client train at its home only? lost: client -> the first round that is drawn without it.
    is_training: is a round's training and combining under way?
    """

    def __init__(self, components: RunComponents) -> None:
        config, engine = components.config, components.engine
        self.components, self.config, self.comm, self.algorithm = (
            components,
            config,
            components.comm,
            components.algorithm,
        )
        # an optimiser, a place in the data or a model that a client keeps is state, whatever the algorithm
        settings = {config.client, *(config.client_for(name) for name in config.per_client if name != SERVER)}
        keeps = any(
            hp.optimizer_state == "keep" or hp.steps is not None or hp.schedule_span == "run" for hp in settings
        )
        keeps |= config.eval.point == "trained" or config.eval.best == "per_client"
        self.is_stateful = keeps or components.algorithm.stateful(engine.private)
        self.has_homes = self.is_stateful or config.clients.on_loss == "continue" or config.system.placement == "pinned"
        self.homes, self.judges = components.placement.homes, components.placement.judges
        spill = config.folder / "spill" / f"rank{self.comm.rank}"
        self.store = ClientStore(spill / "states", config.system.state_memory_mb << 20)
        self.received = torch.zeros(
            engine.shared.size * len(self.algorithm.exchanged_vectors), dtype=engine.shared.dtype
        )
        message_bytes = self.algorithm.message_bytes(engine.shared)
        self.has_messages = message_bytes > 0
        length, dtype = (message_bytes, torch.uint8) if message_bytes else (len(self.received), engine.shared.dtype)
        self.updates = UpdateBuffer(length, dtype, spill / "updates", config.system.update_memory_mb << 20)
        self.server = ServerState(
            self.split_vectors(self.received),
            num_clients=len(components.clients),
            optimizer=ServerOptimizer(config.server),
            num_rounds=config.rounds,
            layout=engine.shared,
        )
        self.round = 0
        self.lost: dict[str, int] = {}
        self.is_training = False
        self._lost_ranks: frozenset[int] = frozenset()
        self.is_fresh = False
        self.seconds: dict[str, float] = {}
        self._indices = {name: index for index, name in enumerate(self.comm.names)}

    @property
    def shared(self) -> Tensor:
        """The shared weights this rank received last (on the server: the current ones), flat."""
        if not self.algorithm.exchanged_vectors:
            return self.components.engine.initial_shared
        return self.received[: self.components.engine.shared.size]

    @cached_property
    def total(self) -> Tensor:
        """Where messages are summed, flat; the same memory in every round, as a first touch costs more than the sum."""
        return torch.empty(self.components.engine.shared.size, dtype=self.components.engine.shared.dtype)

    def split_vectors(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of `flat` by the names of `Algorithm.exchanged_vectors`."""
        names = self.algorithm.exchanged_vectors
        return dict(zip(names, flat.chunk(len(names)), strict=True)) if names else {}

    def server_vectors(self) -> dict[str, Tensor]:
        """The server's vectors as this rank has them; with replicas its further tensors too."""
        planes = self.split_vectors(self.received)
        return {**self.server.tensors, **planes} if self.has_messages else planes

    def private_of(self, client: str, state: ClientState) -> Tensor | None:
        """The client's private weights, flat; before its first round its own draw of them. None if there are none."""
        layout = self.components.engine.private
        if not layout.size:
            return None
        if "private" in state.tensors:
            return state.tensors["private"]
        drawn = self.components.task.draw_private(
            self.components.engine.module, seed_for(self.config.run.seed, "private", client)
        )
        initial = self.components.engine.initial_private.clone()
        for name, view in layout.view(initial).items():
            if name in drawn:
                view.copy_(drawn[name])
        return initial

    def hosts(self, worker: int) -> bool:
        """Does this rank belong to that worker?"""
        return self.comm.rank in self.components.topology.workers[worker]

    @property
    def leads(self) -> bool:
        """Does this rank speak for its worker to the federation?"""
        return self.components.worker is None or self.components.worker.leads

    def keeps(self, entry: str) -> bool:
        """Is this rank the one that saves this entry of a client's state?"""
        worker, keeper = self.components.worker, self._keeper(entry)
        return worker is None or worker.rank == (keeper or 0)

    def may_have(self, entry: str) -> bool:
        """Is this entry of a client's state no other rank's alone?"""
        worker, keeper = self.components.worker, self._keeper(entry)
        return worker is None or keeper in (None, worker.rank)

    def _keeper(self, entry: str) -> int | None:
        owners = self.components.engine.owners
        return None if owners is None else owners.keeper(entry)

    def is_stopped(self) -> bool:
        """Was any rank of this worker asked to stop? Called by all of them alike."""
        stop = self.components.stop()
        return stop if self.components.worker is None else self.components.worker.any(stop)

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

    def barrier(self, phase: str, *, may_stop: bool = True) -> None:
        """Wait for all ranks.

        Raises:
            Stopped: on all ranks, if any of them was asked to stop.
        """
        wants_stop = may_stop and self.components.stop()
        stop = self.comm.barrier(phase, round=self.round, stop=wants_stop)
        self.note_losses()
        if stop and may_stop:
            raise Stopped

    def retry_on_loss(self, phase: str, exchange: Callable[[], Answer]) -> Answer:
        """What `exchange` returns, a step made of collectives; all ranks call it alike.

        Where a worker is lost in it and the run goes on (`clients.on_loss`), the others do it again without that one.
        So it must not change anything but what it receives; what follows from it is done with what it returned, which
        counts on all ranks or on none.
        """
        while True:
            answer: list[Answer] = []
            try:
                answer.append(exchange())
            except CollectiveFailed as error:
                log.debug("%s of round %d is repeated: %s", phase, self.round + 1, error)
            is_done = self.comm.commit_collective(bool(answer), phase=phase, round=self.round)
            self.note_losses()
            if is_done:
                return answer[0]

    def note_losses(self) -> None:
        """Take the clients of workers that were lost out of the run; all ranks call it at the same places.

        Raises:
            QuorumError: on all ranks, when `clients.min` cannot be reached any more.
            DeadlineError: on this context, when another one of its worker was lost, without which it is of no use.
        """
        new, self._lost_ranks = self.comm.lost - self._lost_ranks, self.comm.lost
        if not new:
            return
        workers = {number for number, ranks in enumerate(self.components.topology.workers) if new & set(ranks)}
        if any(self.hosts(worker) for worker in workers):
            raise DeadlineError(f"rank {min(new)}, which belongs to the same worker as this one, was lost")
        self.lose([name for name, worker in {**self.judges, **self.homes}.items() if worker in workers])

    def lose(self, clients: Sequence[str]) -> None:
        """These clients take no part any more; in a round whose training is under way they fail.

        Raises:
            QuorumError: see `note_losses`.
        """
        clients = [name for name in clients if name not in self.lost]
        self.lost.update(dict.fromkeys(clients, self.round + int(self.is_training)))
        left = sum(client.name not in self.lost for client in self.components.clients)
        if self.comm.is_server and clients:
            shown = ", ".join(clients[:10]) + (", ..." if len(clients) > 10 else "")
            log.warning("round %d: lost %d clients, %d are left: %s", self.round + 1, len(clients), left, shown)
        if left < self.config.clients.min:
            raise QuorumError(
                f"round {self.round + 1}: {left} clients are left after a loss, but clients.min is "
                f"{self.config.clients.min}; start the run again with all workers"
            )

    def broadcast(self) -> None:
        """The server's vectors to all ranks, unless they have them already."""
        with self.timed("broadcast"):
            self.barrier("broadcast")
            if self.algorithm.exchanged_vectors and not self.is_fresh:
                self.retry_on_loss("broadcast", lambda: self.comm.broadcast(self.received))
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
        if self.components.tracker is not None:
            self.components.tracker.working(text)
