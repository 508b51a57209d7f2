"""State that the round loop, evaluation and saving share on one rank: the parts of the run and where it stands."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.message import MessageAlgorithm, message_bytes
from fedtorch.algorithms.packing import Packing
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.config.schema import Config
from fedtorch.core.client import ClientStore
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.core.update import UpdateBuffer
from fedtorch.rounds.asynchrony.jobs import Jobs
from fedtorch.rounds.asynchrony.versions import Versions
from fedtorch.rounds.asynchrony.weighing import StalenessWeighing
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.exchanged_vectors import ExchangedVectors, SentPlaces
from fedtorch.rounds.membership import Membership, Progress
from fedtorch.rounds.previous_scale import PreviousScale, PublicScale
from fedtorch.rounds.rank_role import RankRole
from fedtorch.rounds.save_schedule import SaveSchedule
from fedtorch.rounds.weighing import Weighing
from fedtorch.tasks.base import SERVER
from fedtorch.train.engine import Engine
from fedtorch.train.settings import ClientConfig


class RoundContext:
    """One rank's side of a run: its components, where the run is, and what server and clients keep."""

    def __init__(self, components: RunComponents) -> None:
        self.components, self.config, self.comm = components, components.config, components.comm
        self.algorithm, self.mechanism = components.algorithm, components.mechanism
        self.progress = Progress()
        """where the run is"""
        self.members = Membership(components, self.progress)
        """who takes part; meetings of all ranks"""
        self.role = RankRole(components)
        """what this rank is within its worker"""
        self.is_stateful = keeps_state(self.config, self.algorithm, components.engine)
        """do clients keep anything?"""
        self.schedule = SaveSchedule(self.config, is_stateful=self.is_stateful, clock=components.clock)
        """after which rounds a checkpoint is written"""
        self.has_homes = self.is_stateful or has_homes(components)
        """does a client train at its home only?"""
        self.places_anew = not self.has_homes and len(components.topology.workers) > 1
        """are the clients of a round shared out among workers every time?"""
        self.owners: tuple[int, ...] = (0,)
        """the ranks that hold a slice each of what second selections left out; just the server: it holds everything"""
        self.seconds: dict[str, float] = {}
        """of the round under way, by phase"""
        self.store = ClientStore(self.spill / "states", self.config.system.state_memory_mb << 20)
        """the states of this rank's own clients"""
        num_bytes = message_bytes(self.algorithm, components.engine.shared)
        self.has_messages = num_bytes > 0
        """do clients send compressed messages, so that every rank keeps a replica of the server's state?"""
        self.vectors = ExchangedVectors(components, self.members, has_messages=self.has_messages)
        """what server and clients exchange"""
        self.updates = self._buffer(num_bytes)
        """what this rank's clients sent in the round"""
        self.server = ServerState(
            self.vectors.by_name(),
            num_clients=len(components.clients),
            optimizer=ServerOptimizer(self.config.server),
            num_rounds=self.config.rounds,
            run_seed=self.config.run.seed,
            layout=self.vectors.layout,
            private=components.engine.private,
        )
        """complete on the server, and with messages on every rank; else only what decides about the loop"""

    def _buffer(self, num_bytes: int) -> UpdateBuffer:
        """For messages of so many bytes; 0: for vectors, or what travels of them, packed or as it is."""
        folder, memory_bytes = self.spill / "updates", self.config.system.update_memory_mb << 20
        if num_bytes:
            return UpdateBuffer(num_bytes, torch.uint8, folder, memory_bytes)
        if (packing := self.packing) is not None:
            return UpdateBuffer(packing.message_bytes, torch.uint8, folder, memory_bytes, lengths=packing.length)
        flat, own = self.vectors.flat, self.mechanism.update_dtype
        return UpdateBuffer(
            len(flat),
            own or self.algorithm.travels.update_dtype or flat.dtype,
            folder,
            memory_bytes,
            places=self.sent_places,
            layout=self.vectors.layout,
            lender=None if self.mechanism.hides_clients else self.comm.memory.lend,
            sum_dtype=own or flat.dtype,
        )

    def begin_vectors(self) -> None:
        """Begin with the initial weights, which all ranks have by now, and settle where vectors and updates lie."""
        self.vectors.begin()
        if not self.comm.is_server:  # else it would keep the memory of vectors that lie elsewhere now
            self.server.tensors.update(self.vectors.by_name())
        self.updates.device = self.vectors.place

    @cached_property
    def sent_places(self) -> SentPlaces:
        """Places of each client's vector that travel in the round under way."""
        return SentPlaces(self.components, self.members, self.vectors.layout)

    @cached_property
    def packing(self) -> Packing | None:
        """How updates are packed for their way; None: vectors and messages travel as they are."""
        return Packing.of(self.config.exchange, self.components.engine.shared, self.sent_places)

    def blank(self) -> Tensor:
        """A vector, or a message, for a client of this rank to fill; what it holds now is of no meaning."""
        return self.updates.blank() if self.packing is None else self.packing.vector

    @property
    def update_numbers(self) -> int | None:
        """How many numbers each update stands for, where it is not as long as what travels."""
        is_message = self.has_messages or self.packing is not None
        return self.components.engine.shared.size * len(self.algorithm.travels.vectors) if is_message else None

    @cached_property
    def jobs(self) -> Jobs | None:
        """Plan of who trains when in asynchronous rounds; None: every round waits for its clients."""
        return Jobs.of(self.config, self.components.clients)

    @cached_property
    def versions(self) -> Versions:
        """Older versions of the server's vectors, of which asynchronous rounds have jobs."""
        kept = self.server.tensors if self.comm.is_server else {}
        return Versions(kept, self.spill / "versions", self.config.system.update_memory_mb << 20)

    @cached_property
    def weighing(self) -> Weighing:
        """Rule for what each update counts."""
        if self.jobs is None:
            return Weighing(self.algorithm)
        return StalenessWeighing(self.algorithm, self.jobs.settings, self.jobs.of_name, self.versions.get)

    @cached_property
    def scale(self) -> PreviousScale | None:
        """Rule that fixes the scale of a round's sum before it; None: something else does."""
        public = self.mechanism.public_exponent
        if self.jobs is not None and public is not None:
            return PublicScale(self.weighing, self.server, public)
        return PreviousScale(self.weighing, self.server) if self.config.system.sum_scale == "previous" else None

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

    def settings_of(self, client: str, round: int | None = None) -> ClientConfig:
        """The client's local training in a round, with its learning rate; also of the server's own data.

        round: from 0; None: the one under way.
        """
        return self.config.client_for(client).in_round(self.round if round is None else round, self.config.rounds)

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

    def client_of(self, name: str) -> str:
        """Name of the client that a report is about; it has a job's name in asynchronous rounds."""
        return name if self.jobs is None else self.jobs.client_of(name)

    def is_open(self, number: int) -> bool:
        """May a training be done again by who goes on from here? number: its round, or the start of its job."""
        is_open = number >= self.round if self.jobs is None else self.jobs.is_open(number, self.round)
        return is_open and self.round < self.config.rounds

    def name(self, message: Packet) -> str:
        """The client a message is about."""
        return self.comm.names[message.client]

    def broadcast(self) -> None:
        """The server's vectors to all ranks, unless they have them already."""
        with self.timed("broadcast"):
            self.vectors.broadcast(self.server.tensors)

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
    mechanism = components.mechanism
    return trains_at_home(components.config) or mechanism.hides_clients or mechanism.needs_homes


def trains_at_home(config: Config) -> bool:
    """Does the config ask that every client trains at its home, whatever it keeps?"""
    return config.clients.on_loss == "continue" or config.system.placement == "pinned"


def keeps_state(config: Config, algorithm: Algorithm, engine: Engine) -> bool:
    """Do clients keep anything? An optimiser, a place in the data or a model is state, whatever the algorithm."""
    settings = {config.client, *(config.client_for(name) for name in config.per_client if name != SERVER)}
    keeps = any(hp.keeps_state for hp in settings)
    keeps |= config.eval.point == "trained" or config.eval.best == "per_client" or config.exchange.error_feedback
    return keeps or algorithm.kept(engine.shared, engine.private).by_clients
