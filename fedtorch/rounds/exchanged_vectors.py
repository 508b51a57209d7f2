"""The vectors that server and clients exchange, as this rank has them: broadcast only where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cached_property, partial

import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.comm.transport.process_group import ignored
from fedtorch.core.direction_model import DirectionModel
from fedtorch.core.overrides import overrides
from fedtorch.core.places import Places
from fedtorch.core.state_keys import WEIGHTS
from fedtorch.core.weights import Layout
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.membership import Membership
from fedtorch.rounds.residence import CPU, place_of
from fedtorch.rounds.scalar_record import ScalarRecord, head_of
from fedtorch.rounds.varying import VaryingVectors
from fedtorch.train.pinned_copy import PinnedCopier
from fedtorch.trust.merkle import PassingLeaves, root_of, vector_root


class _State(Enum):
    """State of the server's vectors beside those of the other ranks."""

    UNLIKE = "the server wrote others"
    STEPPED = "a round's step is all that happened to them since all ranks had them"
    ALIKE = "all ranks hold what the server has"


class ExchangedVectors:
    """The server's vectors on one rank, and their way to all. On all ranks alike, but for what only the server writes.

    Whoever changes the server's vectors says so (`written`, `stepped`), and `broadcast` sends what can differ.
    """

    def __init__(self, components: RunComponents, members: Membership, *, has_messages: bool) -> None:
        """has_messages: does every rank take the server's step itself?"""
        self._components, self._members, self._has_messages = components, members, has_messages
        self._comm, self._algorithm = components.comm, components.algorithm
        self.layout = layout = components.algorithm.travels.laid_out(components.engine.shared)
        """of each of them"""
        self.model = components.algorithm.travels.rule()
        """what makes the weights of the first one; None: they are it"""
        self._record: ScalarRecord | None = None
        self.place = CPU
        """where clients of this rank get them, from `begin` on; the server's own are on the CPU"""
        make = partial(torch.zeros, dtype=layout.dtype) if has_messages else self._comm.vector.make
        self.flat = make(layout.size * len(self._algorithm.travels.vectors), dtype=layout.dtype)
        """the vectors end to end in the order of `Algorithm.travels.vectors`, for reading; on the server
        `server.tensors` are views of it, so nothing is copied before a broadcast"""
        self._sent: Tensor | None = None
        """on the server whose clients get them elsewhere: a copy of them there, from where they are broadcast too"""
        self._copier = PinnedCopier(CPU)
        self.version = object()
        """another object wherever the vectors may have changed on this rank"""
        self._sent_root: tuple[object, str] = (None, "")
        """the version whose root was found while it was sent, and that root"""
        self._state = _State.UNLIKE

    def by_name(self) -> dict[str, Tensor]:
        """Views of the vectors by the names of `Algorithm.travels.vectors`."""
        return self._named(self.flat)

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        names = self._algorithm.travels.vectors
        return dict(zip(names, flat.chunk(len(names)), strict=True)) if names else {}

    def for_clients(self) -> dict[str, Tensor]:
        """The vectors by name where clients of this rank get them, and `weights` also where these are none of them."""
        found = self._named(self._received)
        return found if self.model is None else {WEIGHTS: self.weights, **found}

    @property
    def _received(self) -> Tensor:
        """The vectors as this rank received them last, end to end; on the server the present ones."""
        return self._sent if self._sent is not None and self._state is _State.ALIKE else self.flat

    @contextmanager
    def received_as(self, flat: Tensor) -> Iterator[None]:
        """Within it, jobs on this rank start from these vectors, which are an older version; laid end to end."""
        present, self.flat, self.version = self.flat, flat, object()
        try:
            yield
        finally:
            self.flat, self.version = present, object()

    @property
    def first(self) -> Tensor:
        """The first of the vectors, from which the weights follow, as this rank has it; flat."""
        return self.flat[: self.layout.size]

    @property
    def weights(self) -> Tensor:
        """The shared weights this rank received last (on the server: the current ones), flat."""
        if not self._algorithm.travels.vectors:
            return self._components.engine.initial_shared
        if self.model is not None:
            return self.model.weights(self._initial, self.first)
        return self._received[: self.layout.size]

    @property
    def _initial(self) -> Tensor:
        return self._components.engine.initial_shared

    def open_record(self) -> None:
        """On the server, before the first round that is done now: have the record as it is after those before it.

        Raises:
            CheckpointError: it is not the record of these vectors, or the disk refuses.
        """
        if isinstance(self.model, DirectionModel) and self._comm.is_server:
            self._record = ScalarRecord(self._components.config.folder, head_of(self.model, self._initial))
            self._record.begin(self.first, self._members.progress.round)

    def round_done(self) -> None:
        """On the server: the round under way is about to count; its line is on the disk then.

        Raises:
            CheckpointError: the disk refuses.
        """
        if self._record is not None:
            self._record.add(self._members.progress.round + 1, self.first)

    @property
    def root(self) -> str:
        """Digest of the vectors as this rank has them, see `trust.merkle`; hexadecimal."""
        return vector_root(self.flat)

    @property
    def sent_root(self) -> str:
        """Digest of the vectors as they were sent last; parties that swear to it have it from when they were sent."""
        version, found = self._sent_root
        return found if version is self.version else self.root

    @cached_property
    def varying(self) -> VaryingVectors:
        """Vectors that the server sends beside its own, as all ranks have them."""
        return VaryingVectors(self._algorithm.travels.varying, self.layout.dtype)

    @cached_property
    def total(self) -> Tensor:
        """Where messages are summed, flat; the same memory in every round, as a first touch costs more than the sum."""
        return torch.empty(self.layout.size, dtype=self.layout.dtype)

    def begin(self) -> None:
        """The vectors of all ranks, which have the same initial weights, begin with these; or with zero.

        Payloads have their way by then, so it is known whether vectors may stay on this rank's device.
        """
        if not self._algorithm.travels.vectors:
            return
        initial = self._components.engine.initial()[0] if self.model is None else torch.zeros_like(self.first)
        if self._comm.is_server:
            self.first.copy_(initial)
        if not self._has_messages:
            self.flat = self._comm.vector.share(self.flat)
        self._settle()
        if not self._comm.is_server and not self._comm.vector.is_shared(self.flat):
            self.first.copy_(initial)
        if self._sent is not None:
            self._copier.upload(self.flat, self._sent)
        self._state, self.version = _State.ALIKE, object()

    def _settle(self) -> None:
        """Where clients of this rank get the vectors on its device, make room for them there."""
        self.place = CPU if self._has_messages else place_of(self._components)
        if self.place == CPU:
            return
        self._copier, there = PinnedCopier(self.place), torch.zeros_like(self.flat, device=self.place)
        if self._comm.is_server:
            self._sent = there
        else:
            self.flat = there

    def written(self, *, everywhere: bool = False) -> None:
        """The server's vectors were written otherwise than by a round's step. everywhere: on all ranks alike."""
        self._state, self.version = _State.ALIKE if everywhere else _State.UNLIKE, object()

    def stepped(self) -> None:
        """The server took a round's step; so did every rank, where clients send messages."""
        self.version = object()
        if not self._has_messages:
            self._state = _State.STEPPED if self._state is _State.ALIKE else _State.UNLIKE

    def broadcast(self, server_tensors: Mapping[str, Tensor]) -> None:
        """Send what can differ from what all ranks have, after a meeting. server_tensors: `ServerState.tensors`."""
        if not self._algorithm.travels.vectors or self._state is _State.ALIKE:
            self._members.barrier("broadcast")
            return
        places = None
        if self._state is _State.STEPPED:
            places = self._algorithm.places("broadcast", self.layout, "", self._members.progress.round - 1)
        part = self.flat if places is None else places.take(self.flat)
        if self._sent is not None:
            self._copier.upload(self.flat, part := self._sent)
        self._members.barrier("broadcast", vector=part if part.numel() else None)
        leaves = self._send(part, places, server_tensors)
        self._state, self.version = _State.ALIKE, object()
        if part is self.flat and leaves.are_all:
            self._sent_root = self.version, root_of(leaves.hashes).hex()

    def _send(self, part: Tensor, places: Places | None, server_tensors: Mapping[str, Tensor]) -> PassingLeaves:
        round = self._members.progress.round
        numbers = self._received_numbers(round, len(part))
        leaves = PassingLeaves(part)

        def send() -> dict[str, Tensor]:
            leaves.hashes.clear()
            if part.numel():
                self._comm.broadcast(part, numbers=numbers, came=leaves.up_to if self._comm.swears else ignored)
            return self.varying.send(self._comm, server_tensors, round=round)

        found = self._members.retry_on_loss("broadcast", send)
        if places is not None and not self._comm.vector.is_shared(self.flat):
            places.put(part, self.flat)
        if self.varying.adopt(found):
            self._algorithm.adopt(self._components.engine, self._components.task, self.varying.held)
        return leaves

    def _received_numbers(self, round: int, sent: int) -> int | None:
        """How many numbers all clients together get, where the algorithm says so for each. sent: to all."""
        if not (overrides(type(self._algorithm), "places", Algorithm) and self._comm.is_server):
            return None
        each = [self._algorithm.places("received", self.layout, name, round) for name in self._comm.names]
        return sum(sent if places is None else len(places) for places in each)


class SentPlaces:
    """Places of clients' updates that travel in a round, asked for once of each client."""

    def __init__(self, components: RunComponents, members: Membership, layout: Layout) -> None:
        """layout: of each vector."""
        self._algorithm, self._layout = components.algorithm, layout
        self._progress = members.progress
        self._known: tuple[int, dict[str, Places | None]] = (-1, {})  # round, client -> what travels

    def __call__(self, client: str) -> Places | None:
        """Those of a client in the round under way; None: all."""
        round = self._progress.round
        if self._known[0] != round:
            self._known = (round, {})
        places = self._known[1]
        if client not in places:
            places[client] = self._algorithm.places("sent", self._layout, client, round)
        return places[client]
