"""Rounds of which silos check a share of the leaves (`trust.verify: 0.05`), which the server cannot foresee.

The server has signed the roots of sum, weights and state before it hears which leaves are asked for: they follow from
the record's digest and a key that only silos have. It shows these leaves of the sum and of the state before, with their
paths to the roots; a silo has the weights before. Tag and step of a leaf are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.comm.job.witness import Exchanged
from fedtorch.comm.wire import Packet
from fedtorch.core.errors import TrustError
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import SERVER_STEPS, WEIGHTS
from fedtorch.core.update import Report
from fedtorch.rounds.chained_steps import ChainedSteps
from fedtorch.rounds.checked_steps import CheckedSteps, WholeSteps
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.steps import Steps
from fedtorch.trust.kept import KeptLeaves
from fedtorch.trust.merkle import LEAF, leaves, leaves_in, levels, path, path_length, root_along, vector_leaves
from fedtorch.trust.receipts import Signed

_NODE = 32  # bytes


class OpenedSteps(CheckedSteps):
    """Each silo asks for some leaves, all of them for the same."""

    _tensors: Mapping[str, Tensor] = {}  # on the server: the state's vectors before the step
    _tree: Sequence[Sequence[bytes]] = ()  # on the server: of hashes over the weights after it

    def _next_root(self) -> str:
        self._tree = levels(vector_leaves(self.context.vectors.flat))
        return self._tree[-1][0].hex()

    def _before(self, exchanged: Exchanged) -> None:
        self._tensors = {name: tensor.clone() for name, tensor in self.chain.state_tensors().items()}

    def _look(self, record: Signed, receipts: Sequence[Signed], sums: Tensor | None) -> None:
        self.chain.receipts.add([*self.kept_receipts(receipts), record])
        share = self.context.config.trust.verify
        assert isinstance(share, float)
        asked = self.witness.known_tags.drawn(record, self._leaves, share)
        numbers = {"leaves": tuple(map(float, asked))}
        self.context.members.exchange("leaves", [self.context.message("numbers", lists=numbers)], may_stop=False)
        opening = self._opening(record, asked)
        self._send(opening.data)
        kept = opening.check(self)
        self.chain.kept.keep_leaves(record.digest, kept)
        self.chain.receipts.add([self.witness.sign("acknowledgement", {"record": record.digest})])

    def _answer(self, record: Signed) -> None:
        exchanged = self.witness.last
        assert exchanged is not None and exchanged.total is not None and exchanged.tags is not None
        met = self.context.members.exchange("leaves", may_stop=False)
        asked = [_places(message, self._leaves) for message in met.gathered]
        if any(places != asked[0] for places in asked):
            raise TrustError("silos ask for different leaves of the sum; those that follow from their key are the same")
        opening = self._opening(record, asked[0])
        opening.fill(self, exchanged, self._tensors, self._tree)
        self._send(opening.data)

    def _opening(self, record: Signed, asked: Sequence[int]) -> _Opening:
        flat, vectors = self.context.vectors.flat, self.context.algorithm.travels.vectors
        return _Opening(self.chain.record.about, record.about, asked, vectors, len(flat), flat.itemsize)

    def _send(self, data: npt.NDArray[np.uint8]) -> None:
        vector, context = torch.from_numpy(data), self.context
        context.members.retry_on_loss("leaves", lambda: context.comm.broadcast(vector, numbers=0))


def _places(message: Packet, count: int) -> list[int]:
    places = [int(place) for place in message.lists["leaves"]]
    if not places or places != sorted({*places}) or not 0 <= places[0] <= places[-1] < count:
        raise TrustError(f"a silo asks for leaves that cannot be asked for: {places[:5]} of {count}")
    return places


@dataclass
class _Opening:
    """Leaves that are shown, in one vector of bytes whose length both sides know before.

    Of several vectors that are exchanged end to end, the step of one number may need those of its place in all of them.
    """

    before: Mapping[str, Any]
    """What the record says from which the round began."""
    after: Mapping[str, Any]
    """What the round's record says."""
    asked: Sequence[int]
    """The leaves of the exchanged vectors, ascending."""
    vectors: Sequence[str]
    """Names of these vectors."""
    size: int
    """Numbers of all of them."""
    itemsize: int
    """Bytes of one of them."""

    def __post_init__(self) -> None:
        self.each, self.count = self.size // len(self.vectors), leaves_in(self.size)
        self.names = sorted(self.before["state"]["tensors"])
        self.left = sorted(self.after["state"]["tensors"])
        stretches = [(start, stop) for leaf in self.asked for _, start, stop in self._in_vectors(leaf)]
        self.states = _Some(stretches, self.each)
        """leaves of each vector alone, of whose numbers the step is taken"""
        self.sums = _Some(self._places(), self.size)
        """leaves of the sum that it needs"""
        self.data = np.zeros(sum(map(len, self._parts(None))), np.uint8)

    def _in_vectors(self, leaf: int) -> Iterator[tuple[str, int, int]]:
        """(vector, start, stop) of the numbers of a leaf of all vectors, in each vector alone."""
        start, stop = leaf * LEAF, min((leaf + 1) * LEAF, self.size)
        while start < stop:
            vector, place = divmod(start, self.each)
            end = min(stop, (vector + 1) * self.each)
            yield self.vectors[vector], place, place + end - start
            start = end

    def _places(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of each stretch of numbers of which the step is taken, vector by vector."""
        for first in range(0, self.size, self.each):
            for start, stop in self.states.stretches.values():
                yield first + start, first + stop

    def _parts(self, data: npt.NDArray[np.uint8] | None) -> Iterator[npt.NDArray[np.uint8]]:
        """The parts in order, each before its path: sums with tags; states before, with paths after; weights' paths."""
        lengths = list[int]()
        for leaf, (start, stop) in self.sums.stretches.items():
            lengths += [8 * (stop - start), 8, _NODE * path_length(leaf, self.count)]
        for leaf, (start, stop) in self.states.stretches.items():
            nodes = _NODE * path_length(leaf, leaves_in(self.each))
            lengths += [*[self.itemsize * (stop - start), nodes] * len(self.names), *[nodes] * len(self.left)]
        lengths += [_NODE * path_length(leaf, self.count) for leaf in self.asked]
        at = 0
        for length in lengths:
            yield np.empty(length, np.uint8) if data is None else data[at : at + length]
            at += length

    def fill(
        self,
        steps: CheckedSteps,
        exchanged: Exchanged,
        tensors: Mapping[str, Tensor],
        weights: Sequence[Sequence[bytes]],
    ) -> None:
        """On the server. tensors: of the state before the step. weights: the tree over the vectors after it."""
        assert exchanged.total is not None and exchanged.tags is not None
        before = {name: levels(vector_leaves(tensors[name])) for name in self.names}
        after = [levels(vector_leaves(steps.context.server.tensors[name])) for name in self.left]
        shown = list[npt.NDArray[Any]]()
        for leaf, (start, stop) in self.sums.stretches.items():
            shown += [exchanged.total[start:stop], exchanged.tags[leaf : leaf + 1], _path(exchanged.tree, leaf)]
        for leaf, (start, stop) in self.states.stretches.items():
            for name, tree in before.items():
                shown += [tensors[name][start:stop].contiguous().view(torch.uint8).numpy(), _path(tree, leaf)]
            shown += [_path(tree, leaf) for tree in after]
        shown += [_path(weights, leaf) for leaf in self.asked]
        for part, values in zip(self._parts(self.data), shown, strict=True):
            part[:] = values.view(np.uint8)

    def check(self, steps: CheckedSteps) -> KeptLeaves:
        """On a silo; what of it is kept.

        Raises:
            TrustError: a leaf is not the record's, its sum not that of the parts, or its step not the server's.
        """
        parts, sums, paths = self._parts(self.data), [], list[npt.NDArray[np.uint8]]()
        for leaf in self.sums.leaves:
            sums.append((next(parts).view(np.int64), next(parts).view(np.uint64)))
            paths.append(next(parts))
            self._along(steps, leaf, self.count, sums[-1][0], paths[-1], self.after["sum"], "sum")
        states: dict[str, list[npt.NDArray[np.uint8]]] = {name: [] for name in self.names}
        after = list[npt.NDArray[np.uint8]]()
        for leaf in self.states.leaves:
            for name, found in states.items():
                found.append(next(parts))
                root = self.before["state"]["tensors"][name]
                self._along(steps, leaf, leaves_in(self.each), found[-1], next(parts), root, name)
            after += [next(parts) for _ in self.left]
        totals, tags = (np.concatenate(each) for each in zip(*sums, strict=True))
        server = self._stepped(steps, totals, {name: np.concatenate(each) for name, each in states.items()})
        self._check_step(steps, server, after, parts)
        steps.check_tags(self.after, totals, tags, self.sums.leaves)
        return KeptLeaves(self.sums.leaves, totals, tags, np.concatenate(paths))

    def _stepped(
        self, steps: CheckedSteps, totals: npt.NDArray[np.int64], state: Mapping[str, npt.NDArray[np.uint8]]
    ) -> ServerState:
        """The server after the step of these numbers. state: bytes of its vectors before, which may be overwritten."""
        context, flat = steps.context, steps.context.vectors.flat
        layout = context.server.layout
        vectors = torch.cat([flat[start:stop] for start, stop in self._places()]).chunk(len(self.vectors))
        tensors = {name: torch.from_numpy(each).view(flat.dtype) for name, each in state.items()}
        server = ServerState(
            {**tensors, **dict(zip(self.vectors, vectors, strict=True))},
            {SERVER_STEPS: self.before["state"]["steps"]} if self.before["state"]["steps"] else {},
            num_clients=context.server.num_clients,
            accepted=[Report(client) for client in self.after["accepted"]],
            optimizer=context.server.optimizer,
            round=context.round,
            num_rounds=context.server.num_rounds,
            run_seed=context.server.run_seed,
            layout=None if layout is None else layout.within(self.states.stretches.values()),
        )
        found = steps.step_of(self.after, totals)
        along = [part for start, stop in self._places() for part in self.sums.of(found, start, stop)]
        context.algorithm.server_update(server, torch.cat(along))
        return server

    def _check_step(
        self,
        steps: CheckedSteps,
        server: ServerState,
        of_states: Sequence[npt.NDArray[np.uint8]],
        of_vectors: Iterable[npt.NDArray[np.uint8]],
    ) -> None:
        """Is a server after the step of these numbers what the record says? of_states, of_vectors: paths, in order."""
        if server.numbers.get(SERVER_STEPS, 0) != self.after["state"]["steps"]:
            raise steps.wrong("the record counts other steps of the server's optimiser than there were")
        roots, paths = self.after["state"]["tensors"], iter(of_states)
        for leaf, (start, stop) in self.states.stretches.items():
            for name in self.left:
                (values,) = self.states.of(server.tensors[name], start, stop)
                shown = values.view(torch.uint8).numpy()  # numpy has not all dtypes
                what = f"{name} after the step"
                self._along(steps, leaf, leaves_in(self.each), shown, next(paths), roots[name], what)
        for leaf, nodes in zip(self.asked, of_vectors, strict=True):
            stepped = [(server.tensors[name], start, stop) for name, start, stop in self._in_vectors(leaf)]
            values = torch.cat([part for stretch in stepped for part in self.states.of(*stretch)])
            what = f"{WEIGHTS} after the step"
            self._along(steps, leaf, self.count, values.view(torch.uint8).numpy(), nodes, self.after["next"], what)
        known = {*roots, *self.vectors}
        if unnamed := [name for name, tensor in server.tensors.items() if name not in known and tensor.any()]:
            raise steps.wrong(f"the record says nothing of `{unnamed[0]}`, which the step has changed")

    def _along(
        self,
        steps: CheckedSteps,
        leaf: int,
        count: int,
        content: npt.NDArray[Any],
        nodes: npt.NDArray[np.uint8],
        expected: str,
        what: str,
    ) -> None:
        (found,) = leaves(content.view(np.uint8), content.nbytes)
        along = [nodes[at : at + _NODE].tobytes() for at in range(0, len(nodes), _NODE)]
        if root_along(found, leaf, count, along).hex() != expected:
            raise steps.wrong(f"leaf {leaf} of the {what} is not that of the record")


class _Some:
    """Some leaves of a vector, whose numbers are laid end to end."""

    def __init__(self, needed: Iterable[tuple[int, int]], size: int) -> None:
        """needed: (start, stop) of stretches that they have in them. size: of the whole vector."""
        self.leaves = sorted({leaf for stretch in needed for leaf in _touched(*stretch)})
        self._at = {leaf: LEAF * number for number, leaf in enumerate(self.leaves)}
        self.stretches = {leaf: (leaf * LEAF, min((leaf + 1) * LEAF, size)) for leaf in self.leaves}
        """leaf -> (start, stop) in the whole vector"""

    def of(self, values: Tensor, start: int, stop: int) -> Iterator[Tensor]:
        """Views of the numbers from `start` to `stop` of the whole vector. values: those of the leaves, end to end."""
        for leaf in _touched(start, stop):
            first, last = max(start, leaf * LEAF), min(stop, (leaf + 1) * LEAF)
            yield values[self._at[leaf] + first - leaf * LEAF :][: last - first]


def _touched(start: int, stop: int) -> range:
    """Leaves that have numbers of this stretch."""
    return range(start // LEAF, leaves_in(stop))


def _path(tree: Sequence[Sequence[bytes]], leaf: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(path(tree, leaf)), np.uint8)


def steps_of(context: RoundContext) -> Steps:
    """How the server's steps are taken in a run, and looked at."""
    witness = context.comm.witness
    if witness is None or not witness.has_records:
        return Steps(context)
    if not witness.has_tags:
        return ChainedSteps(context, witness)
    return (WholeSteps if context.config.trust.verify == "all" else OpenedSteps)(context, witness)
