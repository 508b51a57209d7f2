"""Rounds of which silos check a share of the leaves (`trust.verify: 0.05`), which the server cannot foresee.

The server has signed the roots of sum, weights and state before it hears which leaves are asked for: they follow from
the record's digest and a key that only silos have. It shows these leaves of the sum and of the state before, with their
paths to the roots; a silo has the weights before. Tag and step of a leaf are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from fedtorch.trust.merkle import LEAF, leaves, levels, path, path_length, root_along, vector_leaves
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
        size, itemsize = len(self.context.vectors.flat), self.context.vectors.flat.itemsize
        return _Opening(self.chain.record.about, record.about, asked, size, itemsize)

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
    """Leaves that are shown, in one vector of bytes whose length both sides know before."""

    before: Mapping[str, Any]
    """What the record says from which the round began."""
    after: Mapping[str, Any]
    """What the round's record says."""
    asked: Sequence[int]
    """The leaves, ascending."""
    size: int
    """Numbers of the weights."""
    itemsize: int
    """Bytes of one of them."""

    def __post_init__(self) -> None:
        self.count = -(-self.size // LEAF)
        self.names = sorted(self.before["state"]["tensors"])
        self.left = sorted(self.after["state"]["tensors"])
        self.data = np.zeros(sum(map(len, self._parts(None))), np.uint8)

    def _parts(self, data: npt.NDArray[np.uint8] | None) -> Iterator[npt.NDArray[np.uint8]]:
        """The parts in order: of each leaf its sum, tag, state, and paths (sum, state before, after, weights after)."""
        at = 0
        for leaf in self.asked:
            numbers = min(LEAF, self.size - leaf * LEAF)
            nodes = _NODE * path_length(leaf, self.count)
            paths = 1 + len(self.names) + len(self.left) + 1
            for length in [8 * numbers, 8, *[self.itemsize * numbers] * len(self.names), *[nodes] * paths]:
                yield np.empty(length, np.uint8) if data is None else data[at : at + length]
                at += length

    def fill(
        self,
        steps: CheckedSteps,
        exchanged: Exchanged,
        tensors: Mapping[str, Tensor],
        weights: Sequence[Sequence[bytes]],
    ) -> None:
        """On the server. tensors: of the state before the step. weights: the tree over those after it."""
        assert exchanged.total is not None and exchanged.tags is not None
        server = steps.context.server.tensors
        trees = [exchanged.tree]
        trees += [levels(vector_leaves(tensors[name])) for name in self.names]
        trees += [levels(vector_leaves(server[name])) for name in self.left]
        trees += [weights]
        parts = self._parts(self.data)
        for leaf in self.asked:
            part = slice(leaf * LEAF, (leaf + 1) * LEAF)
            whole = [exchanged.total[part], exchanged.tags[leaf : leaf + 1]]
            shown = [values.view(np.uint8) for values in whole]
            shown += [tensors[name][part].contiguous().view(torch.uint8).numpy() for name in self.names]
            shown += [np.frombuffer(b"".join(path(tree, leaf)), np.uint8) for tree in trees]
            for values in shown:
                next(parts)[:] = values

    def check(self, steps: CheckedSteps) -> KeptLeaves:
        """On a silo; what of it is kept.

        Raises:
            TrustError: a leaf is not the record's, its sum not that of the parts, or its step not the server's.
        """
        parts, shown, along = self._parts(self.data), [], list[bytes]()
        after = list[Sequence[Sequence[bytes]]]()
        for leaf in self.asked:
            total, tag = next(parts).view(np.int64), next(parts).view(np.uint64)
            state = [next(parts) for _ in self.names]
            paths = [_nodes(next(parts)) for _ in range(1 + len(self.names) + len(self.left) + 1)]
            shown.append((total, tag, *state))
            along += paths[0]
            self._along(steps, leaf, total.view(np.uint8), paths[0], self.after["sum"], "sum")
            for values, nodes, name in zip(state, paths[1:], self.names, strict=False):
                self._along(steps, leaf, values, nodes, self.before["state"]["tensors"][name], name)
            after.append(paths[1 + len(self.names) :])
        totals, tags, *states = (np.concatenate(each) for each in zip(*shown, strict=True))
        self._check_step(steps, totals, dict(zip(self.names, states, strict=True)), after)
        steps.check_tags(self.after, totals, tags, self.asked)
        return KeptLeaves(self.asked, totals, tags, np.frombuffer(b"".join(along), np.uint8))

    def _check_step(
        self,
        steps: CheckedSteps,
        totals: npt.NDArray[np.int64],
        state: Mapping[str, npt.NDArray[np.uint8]],
        paths: Sequence[Sequence[Sequence[bytes]]],
    ) -> None:
        """Take the step of these leaves, end to end. paths: of each leaf those of the state after it and the weights.

        state: bytes of its vectors before, which may be overwritten.
        """
        context, flat = steps.context, steps.context.vectors.flat
        layout = context.server.layout
        stretches = [(leaf * LEAF, (leaf + 1) * LEAF) for leaf in self.asked]
        weights = torch.cat([flat[start:stop] for start, stop in stretches])
        server = ServerState(
            {WEIGHTS: weights, **{name: torch.from_numpy(each).view(flat.dtype) for name, each in state.items()}},
            {SERVER_STEPS: self.before["state"]["steps"]} if self.before["state"]["steps"] else {},
            num_clients=context.server.num_clients,
            accepted=[Report(client) for client in self.after["accepted"]],
            optimizer=context.server.optimizer,
            round=context.round,
            num_rounds=context.server.num_rounds,
            run_seed=context.server.run_seed,
            layout=None if layout is None else layout.within(stretches),
        )
        context.algorithm.server_update(server, steps.step_of(self.after, totals))
        if server.numbers.get(SERVER_STEPS, 0) != self.after["state"]["steps"]:
            raise steps.wrong("the record counts other steps of the server's optimiser than there were")
        roots = {**self.after["state"]["tensors"], WEIGHTS: self.after["next"]}
        for place, name in enumerate([*self.left, WEIGHTS]):
            stepped = server.tensors[name].view(torch.uint8).split(LEAF * self.itemsize)
            for leaf, values, nodes in zip(self.asked, stepped, paths, strict=True):
                self._along(steps, leaf, values.numpy(), nodes[place], roots[name], f"{name} after the step")
        if unnamed := [name for name, tensor in server.tensors.items() if name not in roots and tensor.any()]:
            raise steps.wrong(f"the record says nothing of `{unnamed[0]}`, which the step has changed")

    def _along(
        self,
        steps: CheckedSteps,
        leaf: int,
        content: npt.NDArray[np.uint8],
        nodes: Sequence[bytes],
        expected: str,
        what: str,
    ) -> None:
        (found,) = leaves(content, len(content))
        if root_along(found, leaf, self.count, nodes).hex() != expected:
            raise steps.wrong(f"leaf {leaf} of the {what} is not that of the record")


def _nodes(data: npt.NDArray[np.uint8]) -> list[bytes]:
    return [data[at : at + _NODE].tobytes() for at in range(0, len(data), _NODE)]


def steps_of(context: RoundContext) -> Steps:
    """How the server's steps are taken in a run, and looked at."""
    witness = context.comm.witness
    if witness is None or not witness.has_records:
        return Steps(context)
    if not witness.has_tags:
        return ChainedSteps(context, witness)
    return (WholeSteps if context.config.trust.verify == "all" else OpenedSteps)(context, witness)
