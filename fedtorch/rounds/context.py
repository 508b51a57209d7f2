"""State that the round loop, evaluation and saving share on one rank: the parts of the run and where it stands."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.message import MessageAlgorithm, message_bytes
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.config.schema import Config
from fedtorch.core.client import ClientStore
from fedtorch.core.overrides import overrides
from fedtorch.core.places import Places
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.core.update import UpdateBuffer
from fedtorch.core.weights import Layout
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.membership import Membership, Progress
from fedtorch.rounds.previous_scale import PreviousScale
from fedtorch.rounds.rank_role import RankRole
from fedtorch.rounds.varying import VaryingVectors
from fedtorch.tasks.base import SERVER


class RoundContext:
    """One rank's side of a run: its components, where the run is, and what server and clients keep."""

    only_stepped = False
    """Is a round's step all that happened to the server's vectors since all ranks had them?"""
    _places: tuple[int, dict[str, Places | None]] = (-1, {})  # round, client -> what travels
    owners: tuple[int, ...] = (0,)
    """The ranks that have a slice each of what second selections left out; only the server: it has all."""

    def __init__(self, components: RunComponents) -> None:
        self.components, self.config, self.comm = components, components.config, components.comm
        self.algorithm, self.mechanism = components.algorithm, components.mechanism
        self.progress = Progress()
        """where the run is"""
        self.members = Membership(components, self.progress)
        """who takes part; meetings of all ranks"""
        self.role = RankRole(components)
        """what this rank is within its worker"""
        self.is_stateful = keeps_state(self.config, self.algorithm, components.engine.private)
        """do clients keep anything?"""
        self.has_homes = self.is_stateful or has_homes(components)
        """does a client train at its home only?"""
        self.places_anew = not self.has_homes and len(components.topology.workers) > 1
        """are the clients of a round shared out among workers every time?"""
        self.is_fresh = False
        """do all ranks hold what the server has?"""
        self.seconds: dict[str, float] = {}
        """of the round under way, by phase"""
        layout, spill = components.engine.shared, self.spill
        self.store = ClientStore(spill / "states", self.config.system.state_memory_mb << 20)
        """the states of this rank's own clients"""
        self.has_messages = (num_bytes := message_bytes(self.algorithm, layout)) > 0
        """do clients send compressed messages, so that every rank keeps a replica of the server's state?"""
        make = partial(torch.zeros, dtype=layout.dtype) if self.has_messages else self.comm.vector.make
        self.received = make(layout.size * len(self.algorithm.exchanged_vectors), dtype=layout.dtype)
        """the server's vectors, end to end in the order of `Algorithm.exchanged_vectors`, elsewhere to be read only; on
        the server `server.tensors` are views of it, so nothing is copied before a broadcast"""
        self.updates = self._buffer(num_bytes, spill / "updates")
        """what this rank's clients sent in the round"""
        self.server = ServerState(
            self.split_vectors(self.received),
            num_clients=len(components.clients),
            optimizer=ServerOptimizer(self.config.server),
            num_rounds=self.config.rounds,
            run_seed=self.config.run.seed,
            layout=layout,
            private=components.engine.private,
        )
        """complete on the server, and with messages on every rank; else only what decides about the loop"""

    @cached_property
    def scale(self) -> PreviousScale | None:
        """Rule that fixes the scale of a round's sum before it; None: something else does."""
        return PreviousScale(self.algorithm, self.server) if self.config.system.sum_scale == "previous" else None

    @property
    def spill(self) -> Path:
        """The folder for what this rank's memory need not hold."""
        return self.config.folder / "spill" / f"rank{self.comm.rank}"

    def remove_spill(self) -> None:
        """Take that folder away, once nothing more is read; the checkpoint has what counts. Mapped files live on."""
        shutil.rmtree(self.spill, ignore_errors=True)
        with suppress(OSError):  # another rank's is there, or none ever was
            self.spill.parent.rmdir()

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.progress.round

    @property
    def message_algorithm(self) -> MessageAlgorithm:
        """The algorithm, where clients send messages."""
        assert isinstance(self.algorithm, MessageAlgorithm)
        return self.algorithm

    @property
    def shared(self) -> Tensor:
        """The shared weights this rank received last (on the server: the current ones), flat."""
        if not self.algorithm.exchanged_vectors:
            return self.components.engine.initial_shared
        return self.received[: self.components.engine.shared.size]

    @cached_property
    def varying(self) -> VaryingVectors:
        """Vectors that the server sends beside its own, as all ranks have them."""
        return VaryingVectors(self.algorithm.varying_vectors, self.components.engine.shared.dtype)

    @cached_property
    def total(self) -> Tensor:
        """Where messages are summed, flat; the same memory in every round, as a first touch costs more than the sum."""
        return torch.empty(self.components.engine.shared.size, dtype=self.components.engine.shared.dtype)

    def _buffer(self, message_bytes: int, folder: Path) -> UpdateBuffer:
        """For messages of so many bytes; 0: for vectors, or what travels of them."""
        layout, memory_bytes = self.components.engine.shared, self.config.system.update_memory_mb << 20
        if message_bytes:
            return UpdateBuffer(message_bytes, torch.uint8, folder, memory_bytes)
        buffer = UpdateBuffer(len(self.received), layout.dtype, folder, memory_bytes)
        buffer.places, buffer.layout = self.sent_places, layout
        if not self.mechanism.hides_clients:
            buffer.lender = self.comm.memory.lend
        return buffer

    def sent_places(self, client: str) -> Places | None:
        """Places of a client's update that travel in this round."""
        if self._places[0] != self.round:
            self._places = (self.round, {})
        known = self._places[1]
        if client not in known:
            known[client] = self.algorithm.sent_places(self.components.engine.shared, client, self.round)
        return known[client]

    def split_vectors(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of `flat` by the names of `Algorithm.exchanged_vectors`."""
        names = self.algorithm.exchanged_vectors
        return dict(zip(names, flat.chunk(len(names)), strict=True)) if names else {}

    def server_vectors(self) -> dict[str, Tensor]:
        """The server's vectors as this rank has them; with replicas its further tensors too."""
        vectors = self.split_vectors(self.received)
        return {**self.server.tensors, **vectors} if self.has_messages else vectors

    def message(
        self,
        kind: str,
        client: str | None = None,
        *,
        status: str = "ok",
        numbers: Mapping[str, int | float] | None = None,
        lists: Mapping[str, tuple[float, ...]] | None = None,
    ) -> Packet:
        """A message about `client`, or about the run."""
        index = NO_CLIENT if client is None else self.comm.names.place(client)
        return Packet(index, kind, status, dict(numbers or {}), dict(lists or {}))

    def name(self, message: Packet) -> str:
        """The client a message is about."""
        return self.comm.names[message.client]

    def broadcast(self) -> None:
        """The server's vectors to all ranks, unless they have them already."""
        with self.timed("broadcast"):
            self.members.barrier("broadcast")
            if self.algorithm.exchanged_vectors and not self.is_fresh:
                self._send_vectors()
                self.is_fresh, self.only_stepped = True, False

    def begin(self) -> None:
        """The vectors of all ranks, which have the same initial weights, begin with these."""
        if not self.algorithm.exchanged_vectors:
            return
        if self.comm.is_server:
            self.shared.copy_(self.components.engine.initial()[0])
        if not self.has_messages:
            self.received = self.comm.vector.share(self.received)
        if not self.comm.is_server and not self.comm.vector.is_shared(self.received):
            self.shared.copy_(self.components.engine.initial()[0])
        self.is_fresh = True

    def _send_vectors(self) -> None:
        """Send what can differ from what all ranks have."""
        places = None
        if self.only_stepped:
            places = self.algorithm.broadcast_places(self.components.engine.shared, self.round - 1)
        part = self.received if places is None else places.take(self.received)
        numbers = self._received_numbers()

        def send() -> dict[str, Tensor]:
            if part.numel():
                self.comm.broadcast(part, numbers=numbers)
            return self.varying.send(self.comm, self.server.tensors, round=self.round)

        found = self.members.retry_on_loss("broadcast", send)
        if places is not None and not self.comm.vector.is_shared(self.received):
            places.put(part, self.received)
        if self.varying.adopt(found):
            self.algorithm.adopt(self.components.engine, self.components.task, self.varying.held)

    def _received_numbers(self) -> int | None:
        """How many numbers all clients together get, where the algorithm says so for each."""
        rule, layout = self.algorithm, self.components.engine.shared
        if not (overrides(type(rule), "received_places", Algorithm) and self.comm.is_server):
            return None
        found = [rule.received_places(layout, name, self.round) for name in self.comm.names]
        return sum(len(self.received) if places is None else len(places) for places in found)

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


def has_homes(components: RunComponents) -> bool:
    """Does every client train at its home though it keeps nothing? So a worker need not know of others' clients."""
    config = components.config
    is_fixed = config.clients.on_loss == "continue" or config.system.placement == "pinned"
    return is_fixed or components.mechanism.hides_clients


def keeps_state(config: Config, algorithm: Algorithm, private: Layout) -> bool:
    """Do clients keep anything? An optimiser, a place in the data or a model is state, whatever the algorithm."""
    settings = {config.client, *(config.client_for(name) for name in config.per_client if name != SERVER)}
    keeps = any(hp.optimizer_state == "keep" or hp.steps is not None or hp.schedule_span == "run" for hp in settings)
    keeps |= config.eval.point == "trained" or config.eval.best == "per_client"
    return keeps or algorithm.stateful(private)
