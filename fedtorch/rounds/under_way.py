"""Saves of trainings inside a round: every worker saves its own, by itself, and goes on from what it finds.

Nobody has to agree on them but the ranks of one worker: a client that goes on ends with the bits of one that begins
anew. What comes after its last training, such as the difference that is sent, is computed again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import xxhash

from fedtorch.checkpoint.files import to_json
from fedtorch.checkpoint.under_way import UnderWayFile
from fedtorch.config.load import run_digest
from fedtorch.core.errors import CheckpointError
from fedtorch.core.state_keys import part_of
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped
from fedtorch.train.moment import OWN, Moment

log = logging.getLogger(__name__)

_NONE = -1.0
_COUNTED = "counted/"


class UnderWay:
    """When this rank's worker saves a training, and where."""

    def __init__(self, context: RoundContext, clock: Callable[[], float] = time.monotonic) -> None:
        self.context, self.settings = context, context.config.checkpoint
        self.number: Callable[[], int] = lambda: context.round
        """of the training in the run, by which its file is found: that of the round, or the start of a job"""
        self._clock, self._saved_at, self._unsaved, self._is_warned = clock, clock(), 0, False

    def of(self, client: str, *, counts: bool = True) -> ClientSaves | None:
        """Saves of one client in the round under way; None: they were not asked for. counts: see `ClientSaves`."""
        return ClientSaves(self, client, counts) if self.settings.saves_steps else None

    @cached_property
    def config(self) -> str:
        """Digest of the config and of what a checkpoint must agree with beside it."""
        config, facts = self.context.config, self.context.components.facts
        return xxhash.xxh3_64_hexdigest(to_json([run_digest(config), sorted(facts.items())]).encode())

    def is_due(self, step: int, planned: int) -> bool:
        """Is it time, after another step? All ranks of a worker come to the same."""
        self._unsaved += 1
        is_due = step == planned or self._unsaved == self.settings.every_steps
        if self.settings.every_seconds is not None:
            is_late = self.context.role.leads and self._clock() - self._saved_at >= self.settings.every_seconds
            worker = self.context.components.worker
            is_due |= is_late if worker is None else worker.any(is_late)
        return is_due

    def write(self, file: UnderWayFile, slot: int, moment: Moment) -> None:
        """Write a moment."""
        self._unsaved = 0
        try:
            file.write(slot, moment.tensors, {**moment.numbers, "step": moment.step})
        except CheckpointError as error:
            log.log(logging.DEBUG if self._is_warned else logging.WARNING, "a training is not saved: %s", error)
            self._is_warned = True
        self._saved_at = self._clock()


class ClientSaves:
    """Saves of one client's trainings in a round."""

    def __init__(self, rule: UnderWay, client: str, counts: bool) -> None:
        """counts: may what the task counts be written?"""
        self.rule, self.client, self.counts = rule, client, counts
        self.counted: Mapping[str, float] = {}
        """what the task has counted up to the last save"""
        self._trainings = 0

    def training(self, facts: Sequence[bytes | memoryview], fault: Callable[[Moment], str]) -> TrainingSaves:
        """The client's next training."""
        digest = xxhash.xxh3_64()
        for part in facts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        self._trainings += 1
        return TrainingSaves(self, self._trainings, digest.hexdigest(), fault)


class TrainingSaves:
    """Saves of one training."""

    def __init__(self, client: ClientSaves, number: int, beginning: str, fault: Callable[[Moment], str]) -> None:
        context = client.rule.context
        worker = context.components.worker
        self.client, self._context, self._worker = client, context, worker
        self._rank, self._size = (0, 1) if worker is None else (worker.rank, worker.size)
        self._key: dict[str, str | int] = {
            "config": client.rule.config,
            "client": client.client,
            "round": client.rule.number(),
            "training": number,
        }
        self._key |= {"ranks of a worker": self._size, "beginning": beginning}
        self._slot = 0
        self._found = self._agreed(fault)

    def take(self) -> Moment | None:
        """Where it goes on; None: it begins. The second time None."""
        found, self._found = self._found, None
        return found

    def is_due(self, step: int, planned: int) -> bool:
        """Is it to be saved after this step?"""
        return self.client.rule.is_due(step, planned)

    def stops(self, error: Exception) -> bool:
        """Does a signal end the process?"""
        return isinstance(error, Stopped)

    def save(self, moment: Moment) -> None:
        """Write what this rank alone has, and on the worker's first rank what all have."""
        context = self._context
        counted = context.components.training.pop_counters(context.components.engine.module)
        self.client.counted = counted = added(self.client.counted, counted)
        tensors = moment.tensors
        if self._rank and not self._holds_all:
            tensors = {name: tensor for name, tensor in tensors.items() if name.startswith(OWN)}
        kept = {_COUNTED + name: value for name, value in counted.items()} if self.client.counts else {}
        numbers = {**moment.numbers, **kept}
        client = context.mechanism.shown(self.client.client)
        context.comm.heartbeat(phase="save", round=context.round, client=client, step=moment.step)
        self.client.rule.write(self._file(self._rank), self._slot, Moment(tensors, numbers, moment.step))
        self._slot = 1 - self._slot if self._size > 1 else 0

    @property
    def _holds_all(self) -> bool:
        """Does each rank of the worker hold tensors that others do not?"""
        return self._context.components.engine.owners is not None

    def _file(self, rank: int) -> UnderWayFile:
        return UnderWayFile(self._context.config.folder, {**self._key, "part": rank})

    def _agreed(self, fault: Callable[[Moment], str]) -> Moment | None:
        """The newest moment that all ranks of the worker have."""
        read = list(self._read(fault))
        steps = [_NONE if moment is None else float(moment.step) for moment in read]
        everyone = [steps] if self._worker is None else self._worker.all_gather_floats(steps)
        common = [each[0] if len(set(each)) == 1 else _NONE for each in zip(*everyone, strict=True)]
        slot = max(range(len(common)), key=common.__getitem__)
        if (found := read[slot] if common[slot] != _NONE else None) is None:
            return None
        self._slot = 1 - slot if self._size > 1 else 0
        numbers = {name: value for name, value in found.numbers.items() if not name.startswith(_COUNTED)}
        self.client.counted = part_of(found.numbers, _COUNTED)
        client, round = self._context.mechanism.shown(self.client.client), self._context.round + 1
        log.info("client %s goes on after step %d of round %d", client, found.step, round)
        return Moment(found.tensors, numbers, found.step)

    def _read(self, fault: Callable[[Moment], str]) -> Iterator[Moment | None]:
        """The moments that this rank can go on from, of each of the two files."""
        for slot in range(2 if self._size > 1 else 1):
            try:
                yield self._moment(slot, fault)
            except CheckpointError as error:
                client = self._context.mechanism.shown(self.client.client)
                log.warning("client %s: a saved training is not used: %s", client, error)
                yield None

    def _moment(self, slot: int, fault: Callable[[Moment], str]) -> Moment | None:
        own = self._file(self._rank).read(slot)
        if own is None:
            return None
        tensors, numbers = own
        if self._rank and not self._holds_all:
            if (common := self._file(0).read(slot)) is None or common[1].get("step") != numbers.get("step"):
                return None
            tensors = {**{n: t for n, t in common[0].items() if not n.startswith(OWN)}, **tensors}
        step = numbers.pop("step", 0)
        found = Moment(tensors, numbers, int(step))
        if problem := fault(found):
            raise CheckpointError(f"{self._file(self._rank).path(slot)} {problem}")
        return found


def added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The sum of counts by name."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
